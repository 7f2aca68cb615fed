"""Extracts the workloads of a model, and builds the model with the best schedules found for them."""

from __future__ import annotations

import itertools
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.library import build_relax, last_lines
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, make_target, unscheduled_target
from fleet.artifacts.artifact import Artifact
from fleet.domain.workload import Workload
from fleet.errors import BuildError, FleetError, ImportFailed
from fleet.models.importing.complaint import complaint
from fleet.models.importing.program_file import one_function
from fleet.models.model import Model, ModelFormat, import_model
from fleet.workloads.default_schedule import needs_schedule
from fleet.workloads.workload import has_known_sizes, workload_of

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir.meta_schedule.extracted_task import ExtractedTask


_kept: dict[tuple[str, str], IRModule] = {}
"""The newest lowered model, each variant by its digest and target, for the next `compile_model` of this process."""

_MOST_KEPT_BYTES = 256 * 1024**2


def extract(
    model: Model,
    target: Target,
    *,
    is_compiled_next: bool = False,
    on_import: Callable[[IRModule], object] | None = None,
) -> list[Workload]:
    """Return the workloads of a model, the costliest (weight times operations) first. Omits concats that copy nothing,
    and programs with a data-dependent size.

    Those of a model for several shapes are the workloads of all; the weight of one that occurs in several is their sum.

    Args:
        is_compiled_next: keep the lowered model in this process until `compile_model` takes it.
        on_import: receives each imported variant of the model, before any pass of ours.

    Raises:
        ImportFailed: an operator that TVM cannot import.
    """
    load_intrinsics(target)
    if model.format is ModelFormat.PROGRAM:
        return [workload_of(one_function(model.content.decode(), model.title), name=model.title)]
    lowered = [_fused(variant, target, on_import) for variant in model.variants]
    if is_compiled_next:
        _keep(model, target, lowered)
    return united([_workloads(mod, target) for mod in lowered])


def lowered_workloads(mod: IRModule, target: Target) -> list[Workload]:
    """Return the workloads of a Relax module of operators.

    Raises:
        ImportFailed: TVM cannot lower it.
    """
    load_intrinsics(target)
    return _workloads(_lowered(mod, target, "the module"), target)


def united(variants: Sequence[Sequence[Workload]]) -> list[Workload]:
    """Return each workload once, under a unique name, the costliest first."""
    found: dict[str, Workload] = {}
    taken: set[str] = set()
    for workload in itertools.chain.from_iterable(variants):
        same = found.get(workload.shash)
        if same is not None:
            found[workload.shash] = replace(same, weight=same.weight + workload.weight)
        else:
            name = _free_name(workload.name, taken)
            taken.add(name)
            found[workload.shash] = replace(workload, name=name)
    return sorted(found.values(), key=lambda workload: (-workload.flop * workload.weight, workload.name))


def compile_model(
    model: Model,
    target: Target,
    schedules: Mapping[str, str],
    out_dir: Path | str,
    *,
    is_static: bool = True,
    shares_objects: bool = False,
    is_compiled_again: bool = False,
) -> Artifact:
    """Build a whole model to an artifact for the Relax VM.

    Args:
        schedules: best trace (JSON) by workload hash. A workload without one gets its static schedule, on GPUs that of
            TVM's default rules.
        is_static: False: a workload without one gets the default schedule, and concats copy: slow, but right.
        shares_objects: see `build_relax`.
        is_compiled_again: keep the lowered model in this process for another build of it.

    Raises:
        ImportFailed: an operator that TVM cannot import.
        BuildError: it did not compile or link.
    """
    from fleet.workloads.applying import apply_schedules
    from fleet.workloads.concats import join_concats
    from fleet.workloads.several_shapes import one_program

    load_intrinsics(target)
    fused = {one.inputs: _kept.pop(_key(one, target), None) or _fused(one, target) for one in model.variants}
    if is_compiled_again:
        _keep(model, target, list(fused.values()))
    try:
        applied = {
            inputs: apply_schedules(mod, target, schedules, is_static=is_static) for inputs, mod in fused.items()
        }
        mods = {inputs: one.mod for inputs, one in applied.items()}
        mod = one_program(model.title, mods) if model.others else mods[model.inputs]
        mod = join_concats(mod, target).mod if is_static else mod
        built_for = target if is_static else unscheduled_target(target)
        artifact = build_relax(mod, built_for, Path(out_dir), args=model.inputs, shares_objects=shares_objects)
    except FleetError:
        raise
    except Exception as error:  # TVM's passes raise many classes
        raise BuildError(f"{model.title} does not compile for {target.json}: {last_lines(error)}") from error
    return replace(artifact, loop_nests=tuple(sorted({name for one in applied.values() for name in one.loop_nests})))


def is_worth_keeping(model: Model) -> bool:
    """Tell whether a process may keep the lowered model, its weights included, as long as it lives."""
    return sum(variant.size_bytes for variant in model.variants) <= _MOST_KEPT_BYTES


def _keep(model: Model, target: Target, lowered: Sequence[IRModule]) -> None:
    _kept.clear()
    _kept.update(zip((_key(variant, target) for variant in model.variants), lowered, strict=True))


def _fused(model: Model, target: Target, on_import: Callable[[IRModule], object] | None = None) -> IRModule:
    """Return the model as Relax functions that call fused TIR functions."""
    mod = import_model(model, unrolls=needs_schedule(target))
    if on_import is not None:
        on_import(mod)
    return _lowered(mod, target, model.title)


def _lowered(mod: IRModule, target: Target, title: str) -> IRModule:
    from fleet.graph.pipeline import lower

    try:
        return lower(mod, target)
    except Exception as error:  # TVM's passes raise many classes
        raise ImportFailed(f"{title}: TVM cannot lower the model: {complaint(error)}") from error


def _key(model: Model, target: Target) -> tuple[str, str]:
    return model.digest, target.json


def _workloads(fused: IRModule, target: Target) -> list[Workload]:
    from fleet.workloads.concats import skipped_programs

    skipped = skipped_programs(fused, target)
    return [
        workload_of(task.dispatched[0], name=str(task.task_name), weight=int(task.weight))
        for task in _tasks(fused, target)
        if str(task.task_name) not in skipped and has_known_sizes(task.dispatched[0]["main"])
    ]


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return an unused name in TVM's style: "fused_matmul3" for "fused_matmul1"."""
    stem = name.rstrip(string.digits)
    numbered = (f"{stem}{number}" for number in itertools.count(1))
    return next(found for found in itertools.chain([name], numbered) if found not in taken)


def _tasks(fused: IRModule, target: Target) -> list[ExtractedTask]:
    from tvm.s_tir import meta_schedule as ms

    return list(ms.relax_integration.extract_tasks(fused, make_target(target)))
