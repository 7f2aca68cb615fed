"""Builds one candidate from text: a stateless task for a worker of the build pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.cache import BuildCache, cache_key
from cross.compile.library import build, tvm_version
from cross.compile.toolchains import find_linker
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, unscheduled_target
from fleet.artifacts.artifact import Artifact
from fleet.building.built_candidate import BuiltCandidate
from fleet.cost_model.features import extract_features
from fleet.domain.measuring import TensorSpec
from fleet.spaces.packing import Packing, pack_specs, packings_of
from fleet.spaces.space import finished
from fleet.workloads.default_schedule import default_schedule
from fleet.workloads.traces import replay
from fleet.workloads.workload import argument_specs, module_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule

_HALF = "float16"
"""Half-precision types in the notation of programs, including "bfloat16"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildTask:
    """Program to build."""

    mod_json: str
    target: Target
    trace_json: str | None
    """Schedule to replay; None builds the unscheduled program, for the reference and the untuned latency. GPUs cannot
    run that, so there TVM's default rules schedule it."""

    out_dir: str
    function: str = "main"
    wants_features: bool = True
    """False: the search has them already."""

    cache: BuildCache | None = None
    """Cache of built libraries."""

    keeps_object: bool = False
    """Keep the object file in `out_dir`, for the whole models of a job."""


def build_candidate(task: BuildTask) -> BuiltCandidate:
    """Replay the schedule, extract its features, compile and link.

    Raises:
        BuildError: it did not compile or link.
        InvalidRequest: the trace does not fit the workload.
    """
    load_intrinsics(task.target)
    original, features, program = module_of(task.mod_json), None, None
    packings: tuple[Packing, ...] = ()
    args = argument_specs(original)
    if task.trace_json is None:
        mod = default_schedule(original, task.target)
    else:
        schedule = replay(original, task.trace_json)
        program = program_hash(schedule)
        if task.wants_features:
            features = extract_features(task.mod_json, task.target, [schedule])[0]
        mod, packings = finished(schedule.mod, task.target), packings_of(schedule, original)
    target = unscheduled_target(task.target) if task.trace_json is None else task.target
    artifact = _build(mod, task, target, pack_specs(args, packings))
    return BuiltCandidate(artifact=artifact, packings=packings, features=features, program=program)


def _build(mod: IRModule, task: BuildTask, target: Target, args: tuple[TensorSpec, ...]) -> Artifact:
    import tvm_ffi

    out_dir = Path(task.out_dir)
    # Programs of a job are run with the arguments that the artifact describes.
    checks_arguments = task.trace_json is None and not task.keeps_object
    key = None
    if task.cache is not None:
        key = cache_key(
            int(tvm_ffi.structural_hash(mod)),
            target,
            function=task.function,
            args=args,
            checks_arguments=checks_arguments,
            linker=find_linker(target),
            tvm=tvm_version(),
        )
    if task.cache is not None and key is not None and (known := task.cache.get(key, out_dir)) is not None:
        return known
    artifact = build(
        mod,
        target,
        out_dir,
        function=task.function,
        args=args,
        checks_arguments=checks_arguments,
        has_half=_HALF in task.mod_json,
        keeps_object=task.keeps_object,
    )
    if task.cache is not None and key is not None:
        task.cache.put(key, artifact)
    return artifact


def program_hash(schedule: Schedule) -> int:
    """Return an unsigned 64-bit hash of the scheduled program, equal in every process."""
    import tvm_ffi

    return int(tvm_ffi.structural_hash(schedule.mod)) & 0xFFFF_FFFF_FFFF_FFFF
