"""Packed weights: constants that a schedule reads in another order than the model stores them.

A schedule that transforms the layout of a parameter changes the signature of its function. So callers of the function
pack the argument first: once, when the model is compiled, since only constants are packed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleet.domain.measuring import TensorSpec
from fleet.errors import InvalidRequest

if TYPE_CHECKING:
    from tvm.ir import Expr, IRModule
    from tvm.s_tir import Schedule
    from tvm.tirx import IndexMap

Argument = NDArray[np.generic] | TensorSpec
"""An array, or the description of an output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """One packed argument. An axis of n * size elements is split; n becomes the first axis, `size` the last.

    Another axis may be split, too: into groups, which become the very last axis.
    """

    argument: int
    axis: int
    size: int
    group_axis: int | None = None
    group: int = 1

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the packed shape."""
        counts = [n // self.group if axis == self.group_axis else n for axis, n in enumerate(shape)]
        others = counts[: self.axis] + counts[self.axis + 1 :]
        groups = () if self.group_axis is None else (self.group,)
        return (shape[self.axis] // self.size, *others, self.size, *groups)

    def pack(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return a packed copy."""
        axis = self.axis
        if self.group_axis is not None:
            array = np.moveaxis(_split(array, self.group_axis, self.group), self.group_axis + 1, -1)
        packed = np.moveaxis(_split(array, axis, self.size), (axis, axis + 1), (0, -1))
        return np.ascontiguousarray(packed if self.group_axis is None else np.swapaxes(packed, -1, -2))


def _split(array: NDArray[np.generic], axis: int, size: int) -> NDArray[np.generic]:
    """Return the array with an axis split in two, the second of `size` elements."""
    shape = array.shape
    return array.reshape(*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])


def pack_all(arguments: Sequence[Argument], packings: Sequence[Packing]) -> list[Argument]:
    """Return a function's arguments in a schedule's layout; outputs, which are not arrays, are unchanged."""
    found = list(arguments)
    for packing in packings:
        argument = found[packing.argument]
        if isinstance(argument, np.ndarray):
            found[packing.argument] = packing.pack(argument)
    return found


def pack_specs(specs: Sequence[TensorSpec], packings: Sequence[Packing]) -> tuple[TensorSpec, ...]:
    """Return the descriptions of a function's arguments in a schedule's layout."""
    found = list(specs)
    for packing in packings:
        found[packing.argument] = replace(found[packing.argument], shape=packing.shape(found[packing.argument].shape))
    return tuple(found)


def packings_of(schedule: Schedule, original: IRModule) -> tuple[Packing, ...]:
    """Return which arguments of `main` a schedule packs.

    Raises:
        InvalidRequest: it changes an argument in another way.
    """
    before, after = (_parameter_shapes(mod) for mod in (original, schedule.mod))
    changed = [index for index, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
    if not changed:
        return ()
    maps = [step.inputs[1] for step in schedule.trace.insts if step.kind.name == "TransformLayout"]
    found = [_packing(argument, index_map) for argument, index_map in zip(changed, maps, strict=False)]
    for packing in found:
        if packing is None or packing.shape(before[packing.argument]) != after[packing.argument]:
            raise InvalidRequest("the schedule changes the layout of an argument in a way that is not known here")
    if len(found) != len(changed):
        raise InvalidRequest("the schedule changes arguments without a step that says how")
    return tuple(packing for packing in found if packing is not None)


def _parameter_shapes(mod: IRModule) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in param.shape) for param in mod["main"].params if hasattr(param, "shape")]


def _packing(argument: int, index_map: IndexMap) -> Packing | None:
    outer, *_, last = index_map.final_indices
    if (axis := _divided(index_map, outer)) is None:
        return None
    if _remainder(index_map, last) == axis:
        return Packing(argument=argument, axis=axis, size=int(outer.b))
    group_axis = _remainder(index_map, last)
    if group_axis is None or _remainder(index_map, index_map.final_indices[-2]) != axis:
        return None
    return Packing(argument=argument, axis=axis, size=int(outer.b), group_axis=group_axis, group=int(last.b))


def _divided(index_map: IndexMap, index: Expr) -> int | None:
    """Return the axis that an index is a quotient of."""
    from tvm.ir.prim import expr as prim

    return _axis_of(index_map, index.a) if isinstance(index, prim.FloorDiv) else None


def _remainder(index_map: IndexMap, index: Expr) -> int | None:
    """Return the axis that an index is a remainder of."""
    from tvm.ir.prim import expr as prim

    return _axis_of(index_map, index.a) if isinstance(index, prim.FloorMod) else None


def _axis_of(index_map: IndexMap, variable: Expr) -> int | None:
    return next((i for i, index in enumerate(index_map.initial_indices) if index.same_as(variable)), None)
