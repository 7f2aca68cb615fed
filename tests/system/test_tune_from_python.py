"""`fleet.tune`: a model that exists in Python, tuned without a file in between."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

import fleet
from fleet.jobs.report import TuneReport
from fleet.library import Library

if TYPE_CHECKING:
    from fleet import TunedJob

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_model_in_memory_is_tuned(two_products: Path, tmp_path: Path) -> None:
    """A model in memory is tuned, also inside an event loop; its records are in the library, and the job renders in a
    notebook.
    """
    library = tmp_path / "library.sqlite"

    async def in_a_notebook() -> TunedJob:
        return fleet.tune(onnx.load(two_products), trials=0, library=library)

    job = asyncio.run(in_a_notebook())

    assert job.model is not None
    assert job.model.is_right
    assert job.model.static_ms
    assert {workload.trials for workload in job.workloads} == {0}
    assert job.plot().startswith("<svg")
    assert job._repr_html_() == job.report._repr_html_()
    assert repr(job).startswith(f"<TunedJob {job.job}: model.onnx on ")
    assert set(job.to_json()) == {"repeated", *(each.name for each in fields(TuneReport))}
    with Library.open(library) as opened:
        counts = [len(opened.records(workload.shash)) for workload in opened.find_workloads()]
    assert len(counts) == 2
    assert all(counts)
