"""Builds one operator alone as a model has it: a stateless task for a worker of the build pool."""

from __future__ import annotations

from pathlib import Path

from cross.build.library import build
from cross.targets.intrinsics import load_intrinsics
from fleet.artifacts.artifact import Artifact
from fleet.optimizer.tasks.build import BuildTask
from fleet.spaces.choose import finished, static_schedule
from fleet.spaces.packing import pack_specs, packings_of
from fleet.workloads.applying import NO_TRACE
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.traces import replay
from fleet.workloads.workload import argument_specs, module_of


def build_alone(task: BuildTask) -> Artifact:
    """Build a workload with its trace, else with its static schedule, as `compile_model` does; weights are packed.

    Returns:
        An artifact whose arguments are as it takes them.

    Raises:
        BuildError: it did not compile or link.
        InvalidRequest: the trace does not fit the workload.
    """
    load_intrinsics(task.target_json)
    original = module_of(task.mod_json)
    args = argument_specs(original)
    if task.trace_json is None:
        schedule = static_schedule(original, task.target_json)
    else:
        schedule = replay(original, task.trace_json) if task.trace_json != NO_TRACE else None
    if schedule is None:
        mod = default_schedule(original, task.target_json)
    else:
        mod, args = finished(schedule.mod, task.target_json), pack_specs(args, packings_of(schedule, original))
    return build(mod, task.target_json, Path(task.out_dir), function=task.function, args=args)
