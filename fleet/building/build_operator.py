"""Builds one operator scheduled, in its form in a model: a stateless task for a worker of the build pool."""

from __future__ import annotations

from pathlib import Path

from cross.compile.library import build
from cross.targets.intrinsics import load_intrinsics
from fleet.artifacts.artifact import Artifact
from fleet.building.build_candidate import BuildTask
from fleet.workloads.workload import module_of


def build_operator(task: BuildTask) -> Artifact:
    """Build a workload with its trace, else with its static schedule, as `compile_model` does; weights are packed.

    Returns:
        An artifact with the arguments that it takes.

    Raises:
        BuildError: it did not compile or link.
        InvalidRequest: the trace does not fit the workload.
    """
    from fleet.workloads.scheduled_operator import schedule_operator

    load_intrinsics(task.target)
    scheduled = schedule_operator(module_of(task.mod_json), task.target, task.trace_json)
    return build(scheduled.mod, task.target, Path(task.out_dir), function=task.function, args=scheduled.args)
