"""`fleet.pipeline`: our passes and the library's schedules for users of stock Relax, with the lowering that they
require.

    executable = tvm.compile(mod, target, relax_pipeline=fleet.pipeline(target))

TVM runs in the caller's process here, which has it loaded anyway.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm.ir.transform import Pass, PassContext
from tvm.tirx import PrimFunc

from cross.compile import lowering
from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target, make_target, parse_target
from fleet.domain.scope import ScopeFilter
from fleet.domain.tvm_versions import tvm_version
from fleet.domain.workload import Workload
from fleet.export.choice import choose
from fleet.export.targets import target_of
from fleet.graph.pipeline import lower
from fleet.library import Library
from fleet.packs.lookup import open_packs
from fleet.workloads.applying import apply_schedules, workload_module
from fleet.workloads.concats import join_concats
from fleet.workloads.workload import has_known_sizes, workload_of

logger = logging.getLogger(__name__)


def pipeline(
    target: str | Mapping[str, object] | tvm.target.Target,
    *,
    library: str | os.PathLike[str] | None = None,
    device_model: str | None = None,
) -> Pass:
    """Return a pass from a model's Relax operators to VM code, with the best checked schedules of library and packs.

    An operator without a record gets its static schedule, on GPUs that of TVM's default rules; one for tensors of open
    sizes has neither on processors. The library is read when the pass runs.

    Args:
        target: a board ("rpi4-64"), "host", a TVM target as JSON or dict, or a `tvm.target.Target`: the one that the
            module is compiled for.
        library: file or URL of the library; None: your own.
        device_model: take the records measured on this hardware, whatever their exact target.

    Raises:
        ConfigError: a target that cannot work.
        LibraryError: when the pass runs: the library cannot be used.
    """
    parsed = target_in(target)
    made = make_target(parsed)
    within = ScopeFilter(device_model=device_model).for_build(parsed.json, tvm_version())

    def run(mod: IRModule, _: PassContext) -> IRModule:
        load_intrinsics(parsed)
        lowered = lower(mod, parsed)
        with Library.open(library) as opened, open_packs() as packs:
            choice = choose(opened, _workloads(lowered), within, packs)
        for line in filter(None, (choice.unproven, choice.packs)):
            logger.warning(line)
        scheduled = apply_schedules(lowered, parsed, choice.traces).mod
        planned = relax.get_default_pipeline(made)(join_concats(scheduled, parsed).mod)
        return lowering.lower_by_default(planned, parsed)

    return tvm.transform.module_pass(run, opt_level=0, name="FleetPipeline")


def tir_pipeline(target: str | Mapping[str, object] | tvm.target.Target) -> str:
    """Return the name of the lowering that our schedules expect: TVM's, with the sums of a tile in registers.

    For programs that were scheduled by other means than `pipeline`; those of its own are lowered so in any case. With
    TVM's own, tiles of 1 KiB and more come from the heap: right, but a 1x1 convolution takes up to a third longer.

    Raises:
        ConfigError: a target that cannot work.
    """
    return lowering.tir_pipeline(target_in(target))


def target_in(target: str | Mapping[str, object] | tvm.target.Target) -> Target:
    """Parse a target in any form that users have it."""
    return target_of(target) if isinstance(target, str) else parse_target(json.dumps(_described(target)))


def _described(target: Mapping[str, object] | tvm.target.Target) -> dict[str, object]:
    return dict(target) if isinstance(target, Mapping) else dict(json.loads(str(target)))


def _workloads(lowered: IRModule) -> list[Workload]:
    """Return the programs that may have a record: programs of dynamic shapes have none."""
    return [
        workload_of(workload_module(function), name=variable.name_hint)
        for variable, function in lowered.functions.items()
        if isinstance(function, PrimFunc) and has_known_sizes(function)
    ]
