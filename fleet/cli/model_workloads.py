"""Workloads of a model file, for commands that look them up in a library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cross.targets.target import Target
from fleet.base.scratch import scratch_dir
from fleet.cli.one_worker import one_worker
from fleet.domain.workload import Workload
from fleet.models.confined import having, reading
from fleet.models.importing.shapes import Shapes
from fleet.models.model import check_exists, load_model
from fleet.workloads.extract import extract


def workloads_of_model(
    path: Path, target: Target, *, shapes: Sequence[Shapes] = (), batch_size: int | None = None
) -> list[Workload]:
    """Read a model in a confined worker, and return its workloads, the costliest first.

    Raises:
        ImportFailed: the file is missing, or TVM cannot import or lower it.
        InvalidRequest: a shape does not fit it.
    """
    check_exists(path)
    with scratch_dir("model") as folder, one_worker(target) as worker:
        model = worker.run(reading(load_model, path), path, shapes=shapes, batch_size=batch_size).stored_in(folder)
        return worker.run(having(extract, model), model, target)
