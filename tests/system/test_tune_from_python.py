"""`fleet.tune`: a model that exists in Python, tuned without a file in between."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest

import fleet
from fleet.library import Library

if TYPE_CHECKING:
    from fleet.optimizer.job import TuneReport

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_model_in_memory_is_tuned(two_products: Path, tmp_path: Path) -> None:
    """Also where an event loop runs; what was found is in the library, and the report is that of `fleet tune`."""
    library = str(tmp_path / "library.sqlite")

    async def in_a_notebook() -> TuneReport:
        return fleet.tune(onnx.load(two_products), trials=0, library=library)

    report = asyncio.run(in_a_notebook())

    assert report.model is not None
    assert report.model.is_right
    assert report.model.static_ms
    assert {workload.trials for workload in report.workloads} == {0}
    with Library.open(library) as opened:
        counts = [len(opened.records(workload.shash)) for workload in opened.find_workloads()]
    assert len(counts) == 2
    assert all(counts)
