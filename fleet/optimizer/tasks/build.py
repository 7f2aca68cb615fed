"""Builds one candidate from text: a stateless task for a worker of the build pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cross.build.library import build
from cross.targets.intrinsics import load_intrinsics
from fleet.artifacts.artifact import Artifact
from fleet.cost_model.learn import extract_features
from fleet.optimizer.tasks.search_state import program_hash
from fleet.spaces.choose import finished
from fleet.spaces.packing import Packing, pack_specs, packings_of
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.traces import replay
from fleet.workloads.workload import argument_specs, module_of


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTask:
    """What to build."""

    mod_json: str
    target_json: str
    trace_json: str | None
    """Schedule to replay; None builds the unscheduled program, for the reference and the untuned latency. GPUs cannot
    run that, so there TVM's default rules schedule it."""

    out_dir: str
    function: str = "main"
    wants_features: bool = True
    """False: the search has them already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltCandidate:
    """A built candidate."""

    artifact: Artifact
    """With the arguments as the candidate takes them: packed, where it wants that."""

    features: NDArray[np.float32] | None
    """For `learn`: float32, shape [n_stores, n_features]; None for the unscheduled program, or where not wanted."""

    packings: tuple[Packing, ...] = ()
    """How to make its arguments from the workload's."""

    program: int | None = None
    """Hash of the scheduled program."""


def build_candidate(task: BuildTask) -> BuiltCandidate:
    """Replay the schedule, extract its features, compile and link.

    Raises:
        BuildError: it did not compile or link.
        InvalidRequest: the trace does not fit the workload.
    """
    load_intrinsics(task.target_json)
    original, features, program = module_of(task.mod_json), None, None
    packings: tuple[Packing, ...] = ()
    args = argument_specs(original)
    if task.trace_json is None:
        mod = default_schedule(original, task.target_json)
    else:
        schedule = replay(original, task.trace_json)
        program = program_hash(schedule)
        if task.wants_features:
            features = extract_features(task.mod_json, task.target_json, [schedule])[0]
        mod, packings = finished(schedule.mod, task.target_json), packings_of(schedule, original)
    artifact = build(
        mod,
        task.target_json,
        Path(task.out_dir),
        function=task.function,
        args=pack_specs(args, packings),
        checks_arguments=task.trace_json is None,  # candidates run on the arguments that the artifact names
    )
    return BuiltCandidate(artifact=artifact, packings=packings, features=features, program=program)
