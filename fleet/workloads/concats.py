"""Removes copies of concats in a scheduled model by writing operands to their final place.

    x = call_tir(left, a)                     x = call_tir(left__slice, a)
    y = call_tir(right, b)            ->      z = call_tir_inplace(right__slice, b, x)
    z = call_tir(concatenate, x, y)

It is done last: workloads, schedules and records are those of tensors of their own. TVM, which plans the memory, sees
one tensor from the first program that writes into it to the last that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvm import ir, relax
from tvm.ir import BaseFunc, GlobalVar, IRModule
from tvm.relax import Binding, BlockBuilder, Call, Expr, Function, Var

from cross.targets.target import Target
from fleet.graph.concats import CopyReason, marked
from fleet.graph.constants import shape_of
from fleet.graph.rebuilding import is_plain, op_name, result_types
from fleet.workloads.concat_places import Place, Places, concat_places, is_concat
from fleet.workloads.default_schedule import needs_schedule
from fleet.workloads.slices import SLICE, Slice, on_slices, start_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A model in which operands of concats are written to their final place."""

    mod: IRModule
    in_place: int
    """Concats that are not computed any more: their operands are where they belong."""

    copied: tuple[CopyReason, ...]
    """Reasons why the other concats are copied."""


def join_concats(mod: IRModule, target: Target) -> Joined:
    """Return a scheduled model without the concats that need no copies.

    Args:
        mod: of `fleet.workloads.applying.apply_schedules`; several of its functions may be graphs.
    """
    graphs = {variable: function for variable, function in mod.functions.items() if _is_graph(function)}
    if needs_schedule(target):
        count = sum(len(_concats(mod, function)) for function in graphs.values())
        return Joined(mod=mod, in_place=0, copied=(CopyReason.GPU,) * count)
    found = {variable: concat_places(mod, function) for variable, function in graphs.items()}
    in_place = sum(len(places.joined) for places in found.values())
    copied = tuple(reason for places in found.values() for reason in places.copied)
    if not in_place:
        return Joined(mod=mod, in_place=0, copied=copied)
    builder = relax.BlockBuilder(mod)
    for variable, places in found.items():
        builder.update_func(variable, _Joining(mod, places, builder).function(graphs[variable]))
    unused = relax.transform.DeadCodeElimination()
    return Joined(mod=unused(relax.transform.Normalize()(builder.get())), in_place=in_place, copied=copied)


def skipped_programs(lowered: IRModule, target: Target) -> frozenset[str]:
    """Return the names of the programs that `join_concats` will make unused: tuning them would be useless.

    Args:
        lowered: of `fleet.graph.pipeline.lower`, without schedules.
    """
    if needs_schedule(target) or not _is_graph(lowered["main"]):
        return frozenset()
    functions = {
        variable: function if isinstance(function, relax.Function) else marked(function, function)
        for variable, function in lowered.functions.items()
    }
    mod = ir.IRModule(functions)
    joined = concat_places(mod, mod["main"]).joined
    concats = _concats(mod, mod["main"])
    left = {call.args[0] for result, call in concats.items() if result not in joined}
    return frozenset(str(call.args[0].name_hint) for call in concats.values() if call.args[0] not in left)


def _is_graph(function: BaseFunc) -> bool:
    return isinstance(function, relax.Function) and is_plain(function)


def _concats(mod: IRModule, function: Function) -> dict[Var, Call]:
    """Return the calls of concats by their results."""
    values = {binding.var: binding.value for block in function.body.blocks for binding in block.bindings}
    return {result: value for result, value in values.items() if is_concat(mod, value)}


class _Joining:
    """Rewrites one function of a model."""

    def __init__(self, mod: IRModule, places: Places, builder: BlockBuilder) -> None:
        self._mod = mod
        self._places = places
        self._builder = builder
        self._buffers: dict[Var, Var] = {}
        """By the concat that owns the buffer: its variable after the last program that wrote into it."""

        self._values: dict[Var, Var] = {}
        """By operand: the variable of its buffer."""

    def function(self, function: Function) -> Function:
        """Return the function with its operands in their places."""
        blocks = []
        for block in function.body.blocks:
            bindings = [new for binding in block.bindings if (new := self._binding(binding)) is not None]
            blocks.append(type(block)(bindings))
        body = relax.SeqExpr(blocks, function.body.body)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def _binding(self, binding: Binding) -> Binding | None:
        place = self._places.by_value.get(binding.var)
        if binding.var in self._places.joined:
            if place is None:
                return relax.VarBinding(binding.var, self._buffers[binding.var])
            self._values[binding.var] = self._buffers[place.root]
            return None
        if op_name(binding.value) != "relax.call_tir":
            return binding
        call = binding.value
        read = list(call.args[1].fields)
        slices = {i: _slice(self._places.by_value[value]) for i, value in enumerate(read) if value in self._values}
        if place is not None:
            slices[len(read)] = _slice(place)
        if not slices:
            return binding
        program, starts = self._program(call, slices)
        arguments = [*(self._values.get(value, value) for value in read), *starts]
        if place is not None:
            return self._write(binding.var, program, arguments, place)
        return relax.VarBinding(binding.var, relax.call_tir(program, relax.Tuple(arguments), result_types(call)))

    def _write(self, operand: Var, program: GlobalVar, arguments: list[Expr], place: Place) -> Binding:
        """Return the call that writes an operand into its buffer; the first one creates the buffer."""
        buffer = self._buffers.get(place.root)
        if buffer is None:
            call = relax.call_tir(program, relax.Tuple(arguments), place.root.ty)
        else:
            call = relax.call_tir_inplace(program, relax.Tuple([*arguments, buffer]), len(arguments), place.root.ty)
        written = relax.DataflowVar(operand.name, place.root.ty)
        self._buffers[place.root] = self._values[operand] = written
        return relax.VarBinding(written, call)

    def _program(self, call: Call, slices: Mapping[int, Slice]) -> tuple[GlobalVar, list[Expr]]:
        """Return the program of a call with these parameters, by index, as slices, and its additional arguments."""
        program = call.args[0]
        original = self._mod[program]
        function = on_slices(original, slices, outputs=len(result_types(call)))
        if "global_symbol" in (function.attrs or {}):
            function = function.without_attr("global_symbol")
        added = self._builder.add_func(function, program.name_hint + SLICE)
        return added, start_arguments(original, slices)


def _slice(place: Place) -> Slice:
    return Slice(shape_of(place.root) or (), place.starts)
