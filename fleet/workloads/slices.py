"""Rewrites a scheduled program to work on slices of larger tensors.

A schedule, and the record of it, are made for tensors of their own. Changes are made last: the parameter gets the
larger tensor's shape, and each index moves by where the slice begins. That is an argument of the program, so that one
program serves all slices of a size: compiling one for each of DenseNet's took three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import Expr, TensorLoad, TensorRegion
    from tvm.tirx import BufferStore, PrimFunc, Var


SLICE = "__slice"
"""Infix in the name of a program that works on slices, after the name of the original."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a tensor."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""

    starts: tuple[int, ...]
    """First element of the part along each axis."""


def program_of(name: str) -> str:
    """Return the name of the original of a program that works on slices; other names are unchanged."""
    return name.split(SLICE)[0]


def is_indexed(function: PrimFunc, parameter: int) -> bool:
    """Tell whether a program accesses a parameter by its indices only: without pointers or other views."""
    import tvm_ffi
    from tvm.ir import Var
    from tvm.s_tir import MatchBufferRegion
    from tvm.tirx import IntImm

    variable = function.params[parameter]
    if not all(isinstance(size, IntImm) for size in variable.shape):
        return False
    body = _body_on(function, [_move(variable, Slice(tuple(map(int, variable.shape)), (0,) * len(variable.shape)))])
    left: list[object] = []
    tvm_ffi.structural_walk(body, [(Var, lambda found: left.append(found) if found.same_as(variable) else None)])
    # Intrinsics may need a view of contiguous rows, which those of a slice are not.
    tvm_ffi.structural_walk(
        function.body,
        [(MatchBufferRegion, lambda view: left.append(view) if view.source.source.same_as(variable) else None)],
    )
    return not left


def on_slices(function: PrimFunc, slices: Mapping[int, Slice], *, outputs: int = 1) -> PrimFunc:
    """Return the program with these parameters, by index, as slices of larger tensors.

    Its parameters are the old one's without the outputs; where the slices begin, as `start_arguments` lists them; the
    outputs.

    Args:
        slices: of parameters that `is_indexed`.
        outputs: how many of the parameters, the last ones, are outputs.
    """
    from tvm.tirx import PrimFunc

    moves = [_move(function.params[index], slice_) for index, slice_ in sorted(slices.items())]
    wholes = {move.part: move.whole for move in moves}
    params = [wholes.get(param, param) for param in function.params]
    starts = [start for move in moves for start in move.starts if start is not None]
    params[-outputs:-outputs] = starts
    return PrimFunc(params, _body_on(function, moves), function.ret_type, function.attrs)


def start_arguments(function: PrimFunc, slices: Mapping[int, Slice]) -> list[Expr]:
    """Return the arguments with the offsets of slices, along each axis with a nonzero one."""
    from tvm import tirx

    return [
        tirx.IntImm(size.ty.dtype, start)
        for index, slice_ in sorted(slices.items())
        for size, start in zip(function.params[index].shape, slice_.starts, strict=True)
        if start
    ]


@dataclass(frozen=True, slots=True)
class _Move:
    part: Var
    whole: Var
    starts: Sequence[Var | None]
    """Offsets by axis; None: at 0."""


def _move(part: Var, slice_: Slice) -> _Move:
    """Return the parameter for the whole tensor, and those for the offsets of the slice."""
    from tvm import tirx

    kind = part.ty
    whole = tirx.decl_buffer(
        [tirx.IntImm(size.ty.dtype, whole) for size, whole in zip(part.shape, slice_.shape, strict=True)],
        kind.dtype,
        part.name,
        elem_offset=kind.elem_offset,
        data_alignment=kind.data_alignment,
        offset_factor=kind.offset_factor,
        layout=None,
    )
    starts = [
        tirx.Var(f"{part.name}_start{axis}", size.ty.dtype) if start else None
        for axis, (size, start) in enumerate(zip(part.shape, slice_.starts, strict=True))
    ]
    return _Move(part, whole, starts)


def _body_on(function: PrimFunc, moves: Sequence[_Move]) -> object:
    import tvm_ffi
    from tvm.ir import Range, TensorLoad, TensorRegion
    from tvm.tirx import BufferLoad, BufferRegion, BufferStore

    def find(source: Expr) -> _Move | None:
        return next((move for move in moves if source.same_as(move.part)), None)

    def load(node: TensorLoad) -> Expr:
        move = find(node.source)
        return node if move is None else BufferLoad(move.whole, _shifted(node.indices, move))

    def store(node: BufferStore) -> BufferStore:
        move = find(node.buffer)
        return node if move is None else BufferStore(move.whole, node.value, _shifted(node.indices, move))

    def region(node: TensorRegion) -> TensorRegion:
        move = find(node.source)
        if move is None:
            return node
        begins = _shifted([axis.min for axis in node.region], move)
        ranges = [Range.from_min_extent(begin, axis.extent) for begin, axis in zip(begins, node.region, strict=True)]
        return BufferRegion(move.whole, ranges)

    return tvm_ffi.structural_map(function.body, [(TensorLoad, load), (BufferStore, store), (TensorRegion, region)])


def _shifted(indices: Sequence[Expr], move: _Move) -> list[Expr]:
    return [index if start is None else index + start for index, start in zip(indices, move.starts, strict=True)]
