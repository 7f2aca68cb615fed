"""Converts a scheduled program to 32-bit indices, without which TVM splits no loop at its border.

Models count in 64 bits. TVM narrows that when it lowers a program, by new loop variables, and loses the hint at the old
ones that says which loops to split. Conditions remain in the innermost loops: a tile of 14 rows in a width of
55 took twice as long. Where it cannot narrow a loop, it splits it, and fails if a single step is left of it.
"""

from __future__ import annotations

import math

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, IRModule, TensorLoad
from tvm.s_tir import SBlock
from tvm.tirx import Buffer, Cast, For, IntImm, PrimFunc

from fleet.spaces.loops import SPLIT_HINT

_LARGEST = 2**31 - 1
_WIDE = ("int64", "uint64")


def with_narrow_indices(mod: IRModule) -> IRModule:
    """Return a module with 32-bit loops and indices if some loop is to be split; unchanged if that is too narrow."""
    function = mod["main"]
    if not _has_hints(function):
        return mod
    if _fits(function):
        return tirx.transform.ForceNarrowIndexToInt32()(mod)
    whole = function.with_body(tvm_ffi.structural_map(function.body, [(For, _unsplit)]))
    return tvm.IRModule({"main": whole}, attrs=mod.attrs)


def _unsplit(loop: For) -> For:
    if SPLIT_HINT not in loop.annotations:
        return loop
    kept = {name: value for name, value in loop.annotations.items() if name != SPLIT_HINT}
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, kept)


def _has_hints(function: PrimFunc) -> bool:
    found = False

    def visit_loop(loop: For) -> None:
        nonlocal found
        found = found or SPLIT_HINT in loop.annotations

    tvm_ffi.structural_walk(function.body, [(For, visit_loop)])
    return found


def _fits(function: PrimFunc) -> bool:
    """Tell whether all sizes are known and small, and no data are 64-bit integers."""
    buffers = [param for param in function.params if hasattr(param, "shape")]
    fits = True

    def visit_cast(cast: Cast) -> None:
        nonlocal fits
        fits = fits and (str(cast.ty.dtype) not in _WIDE or not _reads_data(cast.value))

    def visit_number(number: IntImm) -> None:
        nonlocal fits
        fits = fits and abs(int(number.value)) <= _LARGEST

    def visit_block(block: SBlock) -> None:
        buffers.extend(block.alloc_buffers)

    tvm_ffi.structural_walk(function.body, [(Cast, visit_cast), (IntImm, visit_number), (SBlock, visit_block)])
    return fits and all(_is_small(buffer) for buffer in buffers)


def _reads_data(value: Expr) -> bool:
    """Tell whether a number depends on more than the surrounding loops."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, [(TensorLoad, found.append)])
    return bool(found)


def _is_small(buffer: Buffer) -> bool:
    sizes = [int(size) for size in buffer.shape if isinstance(size, IntImm)]
    is_known = len(sizes) == len(buffer.shape)
    return is_known and math.prod(sizes) <= _LARGEST and str(buffer.dtype) not in _WIDE
