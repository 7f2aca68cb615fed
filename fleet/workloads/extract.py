"""Finds the workloads of a model, and builds the model with the best schedules found for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cross.build import gpu_code
from cross.build.library import build_executable, last_lines
from cross.build.lowering import tir_pipeline
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import make_target
from fleet.artifacts.artifact import Artifact
from fleet.errors import BuildError, FleetError, ImportFailed
from fleet.graph.pipeline import lower
from fleet.models.model import Model, import_model
from fleet.workloads.applying import apply_schedules
from fleet.workloads.workload import Workload, workload_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir.meta_schedule.extracted_task import ExtractedTask


def extract(model: Model, target_json: str) -> list[Workload]:
    """Return the workloads of a model, the costliest (weight times operations) first.

    Raises:
        ImportFailed: an operator that TVM cannot import.
    """
    load_intrinsics(target_json)
    found = [
        workload_of(task.dispatched[0], name=str(task.task_name), weight=int(task.weight))
        for task in _tasks(_fused(model, target_json), target_json)
    ]
    return sorted(found, key=lambda workload: (-workload.flop * workload.weight, workload.name))


def compile_model(
    model: Model,
    target_json: str,
    schedules: Mapping[str, str],
    out_dir: Path | str,
    *,
    is_static: bool = True,
) -> Artifact:
    """Build a whole model to an artifact that the Relax VM runs.

    Args:
        schedules: best trace (JSON) by workload hash. A workload without one gets its static schedule, on GPUs that of
            TVM's default rules.
        is_static: False: a workload without one gets the default schedule: slow, but right.

    Raises:
        ImportFailed: an operator that TVM cannot import.
        BuildError: it did not compile or link.
    """
    import tvm

    load_intrinsics(target_json)
    target = make_target(target_json)
    mod = _fused(model, target_json)
    try:
        applied = apply_schedules(mod, target_json, schedules, is_static=is_static)
        with gpu_code.compiling(target_json):
            executable = tvm.compile(applied.mod, target=target, tir_pipeline=tir_pipeline(target_json))
    except FleetError:
        raise
    except Exception as error:
        raise BuildError(f"{model.title} does not compile for {target_json}: {last_lines(error)}") from error
    artifact = build_executable(executable, target_json, Path(out_dir), args=model.inputs)
    return replace(artifact, loop_nests=applied.loop_nests)


def _fused(model: Model, target_json: str) -> IRModule:
    """Return the model as Relax functions that call fused TIR functions."""
    mod = import_model(model)
    try:
        return lower(mod, target_json)
    except Exception as error:
        raise ImportFailed(f"{model.title}: TVM cannot lower the model: {last_lines(error)}") from error


def _tasks(fused: IRModule, target_json: str) -> list[ExtractedTask]:
    from tvm.s_tir import meta_schedule as ms

    return list(ms.relax_integration.extract_tasks(fused, make_target(target_json)))
