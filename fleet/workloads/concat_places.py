"""Decides which concats of a model need no copies: those with operands that can be written to their final place.

The result of such a concat is one buffer, and each operand lives in a slice of it from the moment at which it is
computed. Readers of an operand read the slice. A concat of a concat has one buffer for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tvm import relax
from tvm.ir import GlobalVar, IRModule
from tvm.relax import Call, Expr, Function, Var

from fleet.graph.concats import ATTRIBUTE, CopyReason
from fleet.graph.constants import shape_of
from fleet.graph.rebuilding import op_name, variables_of
from fleet.workloads.slices import is_indexed


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Location of a value in a buffer."""

    root: Var
    """The concat that owns the buffer."""

    starts: tuple[int, ...]
    """Its first element in the buffer, along each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Decisions for a function of a model."""

    by_value: dict[Var, Place]
    """The operands that are slices."""

    joined: list[Var]
    """Results of the concats that are not computed, because their operands are where they belong."""

    copied: list[CopyReason]
    """Reasons why the other concats are copied."""


def concat_places(mod: IRModule, function: Function) -> Places:
    """Decide for each concat of a function whether it is computed."""
    values = {binding.var: binding.value for binding in _bindings(function)}
    readers = _Readers(mod, function)
    places = Places(by_value={}, joined=[], copied=[])
    for result, call in values.items():
        if not is_concat(mod, call):
            continue
        operands, starts = list(call.args[1].fields), _starts(mod, call)
        reasons = (_reason(mod, operand, operands, result, values, readers, places) for operand in operands)
        reason = next((found for found in reasons if found is not None), None)
        if reason is not None:
            places.copied.append(reason)
            continue
        places.joined.append(result)
        for operand, begin in zip(operands, starts, strict=True):
            _move(operand, Place(root=result, starts=begin), places)
    return places


def is_call_tir(value: Expr) -> bool:
    """Tell whether a value is one tensor that a program computes."""
    return op_name(value) == "relax.call_tir" and isinstance(value.ty, relax.TensorType)


def is_concat(mod: IRModule, value: Expr) -> bool:
    """Tell whether a value is computed by a program that is marked as a concat."""
    return is_call_tir(value) and ATTRIBUTE in (mod[value.args[0]].attrs or {})


def _starts(mod: IRModule, concat: Call) -> list[tuple[int, ...]]:
    """Return the offsets of a concat's operands."""
    return [tuple(map(int, start)) for start in mod[concat.args[0]].attrs[ATTRIBUTE]]


def _bindings(function: Function) -> Iterator[Expr]:
    for block in function.body.blocks:
        yield from block.bindings


def _move(value: Var, place: Place, places: Places) -> None:
    """Move a value into a place, together with all values in its buffer."""
    for inner, old in list(places.by_value.items()):
        if old.root.same_as(value):
            starts = tuple(map(sum, zip(old.starts, place.starts, strict=True)))
            places.by_value[inner] = Place(root=place.root, starts=starts)
    places.by_value[value] = place


def _reason(
    mod: IRModule,
    operand: Expr,
    operands: list[Expr],
    result: Var,
    values: dict[Var, Expr],
    readers: _Readers,
    places: Places,
) -> CopyReason | None:
    """Return why an operand of a concat cannot be a slice of the result; None if it can."""
    value = values.get(operand)
    if value is None or not is_call_tir(value):
        return CopyReason.NOT_COMPUTED
    if shape_of(operand) is None:
        return CopyReason.UNKNOWN_SIZE
    if operand in places.by_value or sum(operand.same_as(other) for other in operands) > 1:
        return CopyReason.SHARED
    if operand in readers.others:
        return CopyReason.RETURNED
    accesses = [(call, index) for reader, call, index in readers.programs[operand] if not reader.same_as(result)]
    if operand not in places.joined:
        accesses.append((value, len(value.args[1].fields)))
    if not all(readers.is_indexed(call, index) for call, index in accesses):
        return CopyReason.OPAQUE
    return None


class _Readers:
    """Readers of a function's values."""

    def __init__(self, mod: IRModule, function: Function) -> None:
        self.programs: dict[Var, list[tuple[Var, Call, int]]] = {}
        """By value: the results of the programs that read it, their calls, and the argument's index."""

        self.others: set[Var] = set()
        """Values that something else than a program reads."""

        self._mod = mod
        self._is_indexed: dict[tuple[GlobalVar, int], bool] = {}
        for binding in _bindings(function):
            if op_name(binding.value) == "relax.call_tir":
                for index, argument in enumerate(binding.value.args[1].fields):
                    self.programs.setdefault(argument, []).append((binding.var, binding.value, index))
            else:
                self.others.update(variables_of(binding.value))
        self.others.update(variables_of(function.body.body))

    def is_indexed(self, call: Call, parameter: int) -> bool:
        """Tell whether a call's program accesses a parameter by its indices only."""
        key = (call.args[0], parameter)
        if key not in self._is_indexed:
            self._is_indexed[key] = is_indexed(self._mod[call.args[0]], parameter)
        return self._is_indexed[key]
