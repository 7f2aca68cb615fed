"""Recognizes tensor programs that concatenate tensors, and reports why that may need copies."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tvm.ir import Expr, TensorLoad
    from tvm.s_tir import SBlock
    from tvm.tirx import BufferStore, PrimFunc, Var

ATTRIBUTE = "fleet.concat"
"""Attribute of a PrimFunc that is a concat: for each input the index of the first element that it fills, by axis."""


class CopyReason(enum.StrEnum):
    """Why the operands of a concat are copied instead of being written to their final place."""

    NOT_COMPUTED = "not computed"
    """One is an input or a constant of the model, or comes from something else than a program with one output."""

    SHARED = "shared"
    """One is part of another concat, too, or of this one twice."""

    RETURNED = "returned"
    """One is an output of the model, or something else than a program reads it."""

    UNKNOWN_SIZE = "unknown size"
    """The size of an operand is known only at run time."""

    OPAQUE = "opaque"
    """A program that writes or reads one has a pointer to it, or another view of it."""

    FUSED = "fused"
    """The concat is part of a program that computes more."""

    GPU = "gpu"
    """The programs of GPUs write tensors of their own."""


def concat_starts(function: PrimFunc) -> tuple[tuple[int, ...], ...] | None:
    """Return the offset of each input of a concat in its output, by axis; None if the function is something else.

    Args:
        function: unscheduled: one block of loops, as an operator is legalized.
    """
    *inputs, output = function.params
    stores = _stores(function)
    if len(stores) != 1 or stores[0] is None or not stores[0].buffer.same_as(output):
        return None
    pieces = _pieces(stores[0])
    found = [[begin for source, begin in pieces if source.same_as(param)] for param in inputs]
    is_each_once = all(len(begins) == 1 for begins in found) and len(pieces) == len(inputs)
    return tuple(begin for [begin] in found) if pieces and is_each_once else None


def marked(function: PrimFunc, original: PrimFunc) -> PrimFunc:
    """Return a scheduled function with an attribute if it is a concat, which its loops may no longer show."""
    starts = concat_starts(original)
    return function if starts is None else function.with_attr(ATTRIBUTE, starts)


def is_fused_concat(function: PrimFunc) -> bool:
    """Tell whether an unscheduled program concatenates tensors and computes something else, too."""
    stores = _stores(function)
    return len(stores) > 1 and any(store is not None and _pieces(store) for store in stores)


def _pieces(store: BufferStore) -> list[tuple[Var, tuple[int, ...]]]:
    """Return the tensors that a block concatenates, last first, with their offsets; [] if it does not."""
    found: list[tuple[Var, tuple[int, ...]]] = []
    before = _sizes(store.buffer)
    for load, border in _choices(store.value, store.indices):
        begin = None if load is None else _begin(load, store.indices)
        if load is None or begin is None or begin != border or begin >= before:
            return []
        found.append((load.source, begin))
        before = begin
    starts, sizes = [begin for _, begin in found], [_sizes(source) for source, _ in found]
    return found if _covers(starts, sizes, _sizes(store.buffer)) else []


def _covers(starts: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> bool:
    """Tell whether inputs of these sizes, from there on, fill the output along one axis without gaps."""
    axes = {axis for start in starts for axis, first in enumerate(start) if first}
    if len(axes) != 1 or -1 in whole:
        return False
    axis = axes.pop()
    at = 0
    for start, size in sorted(zip(starts, sizes, strict=True)):
        if start[axis] != at or size[:axis] + size[axis + 1 :] != whole[:axis] + whole[axis + 1 :]:
            return False
        at += size[axis]
    return at == whole[axis]


def _sizes(parameter: Var) -> tuple[int, ...]:
    """Return a tensor's shape; -1 for unknown sizes."""
    from tvm.tirx import IntImm

    return tuple(int(size) if isinstance(size, IntImm) else -1 for size in parameter.shape)


def _stores(function: PrimFunc) -> list[BufferStore | None]:
    """Return the value that each block of a function stores, or None if a block does not store one element at a
    time.
    """
    import tvm_ffi
    from tvm.s_tir import SBlock

    blocks: list[SBlock] = []
    tvm_ffi.structural_walk(function.body, [(SBlock, blocks.append)])
    return [_store(block) for block in blocks if block.iter_vars]


def _store(block: SBlock) -> BufferStore | None:
    from tvm.tirx import BufferStore

    store, axes = block.body, block.iter_vars
    if block.init is not None or not isinstance(store, BufferStore) or len(store.indices) != len(axes):
        return None
    are_turns = all(index.same_as(axis.var) for index, axis in zip(store.indices, axes, strict=True))
    return store if are_turns else None


def _choices(value: Expr, axes: Sequence[Expr]) -> Iterator[tuple[TensorLoad | None, tuple[int, ...] | None]]:
    """Return the loads that a value selects from, each with the indices, by axis, from which it is selected.

    The first that fits is chosen. None: something else than a load, or than a choice by one index.
    """
    from tvm.ir import Call, Op, TensorLoad

    while isinstance(value, Call) and isinstance(value.op, Op) and value.op.name == "prim.if_then_else":
        condition, chosen, value = value.args
        yield chosen if isinstance(chosen, TensorLoad) else None, _border(condition, axes)
    yield value if isinstance(value, TensorLoad) else None, (0,) * len(axes)


def _border(condition: Expr, axes: Sequence[Expr]) -> tuple[int, ...] | None:
    """Return n at the position of the axis, else 0, if the condition is "n <= axis"."""
    from tvm.ir.prim import expr as prim
    from tvm.tirx import IntImm

    if not isinstance(condition, prim.LE) or not isinstance(condition.a, IntImm):
        return None
    return tuple(int(condition.a.value) if condition.b.same_as(axis) else 0 for axis in axes)


def _begin(load: TensorLoad, axes: Sequence[Expr]) -> tuple[int, ...] | None:
    """Return by how much the indices of a load lag behind those of the output; None if they depend on more."""
    from tvm.ir.prim import expr as prim
    from tvm.tirx import IntImm

    begin = []
    for index, axis in zip(load.indices, axes, strict=False):
        if index.same_as(axis):
            begin.append(0)
        elif isinstance(index, prim.Sub) and index.a.same_as(axis) and isinstance(index.b, IntImm):
            begin.append(int(index.b.value))
        else:
            return None
    return tuple(begin) if len(begin) == len(axes) == len(load.indices) else None
