"""Applies schedules to a lowered model: replays each on its function, and packs the constants that it expects
packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import ir, relax
from tvm.ir import GlobalVar, IRModule
from tvm.relax import Call, Expr
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import PrimFunc

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import Target
from fleet.domain.keys import NO_TRACE
from fleet.errors import BuildError, InvalidRequest
from fleet.graph.concats import marked
from fleet.graph.constants import constant
from fleet.graph.rebuilding import result_types
from fleet.spaces.packing import Packing, packings_of
from fleet.spaces.space import finished, static_schedule
from fleet.workloads.default_schedule import default_schedule, needs_schedule, reorder_products
from fleet.workloads.loop_nests import blocks_left, operators_left
from fleet.workloads.traces import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A model with scheduled programs."""

    mod: IRModule
    loop_nests: tuple[str, ...] = ()
    """Parts without the wanted schedule, on processors: functions, blocks of them, and operators."""


def apply_schedules(mod: IRModule, target: Target, traces: Mapping[str, str], *, is_static: bool = True) -> Applied:
    """Apply schedules to all functions of a model.

    Args:
        mod: result of `fleet.graph.pipeline.lower`.
        traces: trace (JSON), or NO_TRACE, by workload hash. One that does not fit is an error.
        is_static: give functions without a trace their static schedule; else the default one, without any choice.

    Raises:
        BuildError: a trace does not fit its function.
        InvalidRequest: it packs a value other than a constant.
    """
    load_intrinsics(target)
    functions = dict(mod.functions)
    packings: dict[GlobalVar, tuple[Packing, ...]] = {}
    is_named = is_static and not needs_schedule(target)
    loop_nests = operators_left(mod) if is_named else []
    for variable, function in mod.functions.items():
        if not isinstance(function, PrimFunc):
            continue
        own = workload_module(function)
        trace = traces.get(workload_hash(own)) if traces else None
        try:
            schedule = _choose(own, target, trace, is_static=is_static)
        except InvalidRequest as error:
            raise BuildError(f"the schedule of {variable.name_hint} does not fit it: {error}") from error
        if is_named and trace != NO_TRACE:
            loop_nests += blocks_left(variable.name_hint, schedule)
        if schedule is not None:
            functions[variable] = marked(_renamed(finished(schedule.mod, target)["main"], function), function)
            packings[variable] = packings_of(schedule, own)
        elif not needs_schedule(target):
            functions[variable] = reorder_products(function)
    scheduled = ir.IRModule(functions, attrs=mod.attrs)
    if needs_schedule(target):
        scheduled = default_schedule(scheduled, target)
    packed = _pack_constants(scheduled, {variable: found for variable, found in packings.items() if found})
    return Applied(mod=packed, loop_nests=tuple(sorted(loop_nests)))


def workload_module(function: PrimFunc) -> IRModule:
    """Return a function of a model as its workload's module: alone, under the name "main"."""
    mod = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    return ms.tune_context._normalize_mod(mod)  # noqa: SLF001 - what TVM's own databases apply before they hash


def _choose(mod: IRModule, target: Target, trace: str | None, *, is_static: bool) -> Schedule | None:
    if trace is not None:
        return replay(mod, trace) if trace != NO_TRACE else None
    return static_schedule(mod, target) if is_static else None


def workload_hash(mod: IRModule) -> str:
    """Return a workload's structural hash in decimal, as MetaSchedule's databases write it."""
    return str(ms.database.Workload(mod).as_json()[0])


def _renamed(scheduled: PrimFunc, original: PrimFunc) -> PrimFunc:
    """Return a scheduled function under its old name and with its old attributes."""
    function = scheduled.with_attr("tirx.is_scheduled", True)
    name = original.attrs.get("global_symbol") if original.attrs else None
    return function.with_attr("global_symbol", name) if name else function.without_attr("global_symbol")


def _pack_constants(mod: IRModule, packings: Mapping[GlobalVar, tuple[Packing, ...]]) -> IRModule:
    """Return the module with constants packed for the functions that expect it."""
    if not packings:
        return mod
    done: dict[tuple[int, Packing], Expr] = {}

    @mutator
    class Packer(PyExprMutator):  # type: ignore[misc]
        """Replaces the constant arguments of calls."""

        def visit_call_(self, call: Call) -> Expr:
            found = packings.get(call.args[0]) if call.op.same_as(_call_tir()) else None
            if not found:
                return call
            arguments = list(call.args[1].fields)
            for packing in found:
                arguments[packing.argument] = _packed(call.args[0], arguments[packing.argument], packing, done)
            return relax.call_tir(renewed[call.args[0]], relax.Tuple(arguments), result_types(call))

    # A function with changed parameters has another type, and so needs another variable, of the same name.
    kept = {variable: function for variable, function in mod.functions.items() if variable not in packings}
    packer = Packer(ir.IRModule(kept, attrs=mod.attrs))
    renewed = {variable: packer.builder_.add_func(mod[variable], variable.name_hint) for variable in packings}
    for variable, function in kept.items():
        if isinstance(function, relax.Function):
            packer.builder_.update_func(variable, packer.visit_expr(function))
    return packer.builder_.get()


def _call_tir() -> object:
    return ir.Op.get("relax.call_tir")


def _packed(function: GlobalVar, argument: Expr, packing: Packing, done: dict[tuple[int, Packing], Expr]) -> Expr:
    """Return a packed constant; each constant is packed once."""
    if not isinstance(argument, ir.GenericConst):
        raise InvalidRequest(f"the schedule of {function.name_hint} packs its argument {packing.argument}, no constant")
    key = (hash(argument), packing)
    if key not in done:
        done[key] = constant(packing.pack(np.asarray(argument.value.numpy())))
    return done[key]
