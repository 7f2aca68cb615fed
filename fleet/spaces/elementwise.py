"""Schedules element-wise programs and copies: the remaining blocks after inlining, one pass over memory.

If an index decides the computation (padding, concatenation), loops are split at the borders, and the rest are plain
copies, which LLVM makes fast. Transposed reads are blocked, so that neither side strides through memory.
"""

from __future__ import annotations

import math

import tvm_ffi
from tvm.ir import Call, Expr, Op
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IntImm, Var

from fleet.spaces.blocks import is_reduction, names_in, stride_of
from fleet.spaces.columns import group_of
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import (
    enough,
    extent,
    lanes_of,
    leave_to_compiler,
    share,
    split_at_borders,
    steps,
    vector_width,
)

_FEWEST_LANES = 4
"""Minimum lanes of vectors that divide a row: pairs take up to twice as long as LLVM's own code."""

_BLOCK = 16
"""Side of the squares in which a matrix is transposed: one cache line of float32."""


def schedule_elementwise(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> bool:
    """Vectorize a block, and parallelize it over the cores. Return False for a reduction."""
    own = schedule.get(block)
    if is_reduction(own):
        return False
    loops = list(schedule.get_loops(block))
    work = steps(schedule, loops)
    deciding, turned = _deciding_axes(own), _turned_axis(own)
    most = lanes_of(own, facts)
    period = _deciding_period(own)
    if period and extent(schedule, loops[-1]) % period == 0:
        loops[-1:] = schedule.split(loops[-1], [None, period])
        deciding = [*(axis for axis in deciding if axis < len(own.iter_vars) - 1), len(own.iter_vars)]
    if deciding[-1:] == [len(loops) - 1] and not period:
        width = _width_between_borders(own, vector_width(extent(schedule, loops[-1]), most))
        if width > 1:
            outside, lanes = schedule.split(loops[-1], [None, width])
            schedule.vectorize(lanes)
            loops[-1] = outside
    if deciding:
        outer = loops[:-1]
    elif turned is not None:
        outer = _turn(schedule, loops, turned)
    elif _is_for_compiler(schedule, own, loops, most):
        leave_to_compiler(schedule, loops[-1])
        outer = loops[:-1]
    else:
        outer = vectorize_within_groups(schedule, loops, group_of(own), most)
    shared = enough(schedule, outer, facts)
    for axis in deciding:
        if axis >= len(shared):
            split_at_borders(schedule, loops[axis])
    if deciding and max(deciding) < len(shared):
        _vectorize_pieces(schedule, own, loops[len(shared) :], most)
    if shared:
        share(schedule, shared, work)
    return True


def _vectorize_pieces(schedule: Schedule, block: SBlock, loops: list[LoopRV], most: int) -> None:
    """Vectorize the last loops as one, if they are contiguous in all that is read and written.

    Conditions outside of them are the same for all of their steps, but LLVM evaluates them for each element.
    """
    axes = block.iter_vars[-len(loops) :]
    for region in [*block.reads, *block.writes]:
        indices, sizes = region.region[-len(axes) :], list(region.source.shape)[-len(axes) :]
        whole = zip(axes, indices, sizes, strict=False)
        if len(indices) < len(axes) or not all(
            index.min.same_as(axis.var) and isinstance(size, IntImm) and int(size) == int(axis.dom.extent)
            for axis, index, size in whole
        ):
            return
    piece = schedule.fuse(*loops)
    width = vector_width(extent(schedule, piece), most)
    if width > 1:
        _, lanes = schedule.split(piece, [None, width])
        schedule.vectorize(lanes)


def _is_for_compiler(schedule: Schedule, block: SBlock, loops: list[LoopRV], most: int) -> bool:
    """Tell whether LLVM vectorizes the last loop better: it vectorizes a whole row if only vectors of two divide
    it, and loads whole vectors if every other number is read.
    """
    width = vector_width(extent(schedule, loops[-1]), most)
    last = block.iter_vars[-1].var
    strides = [stride_of(region.region[-1].min, last) or 0 for region in block.reads if region.region]
    is_narrow = 1 < width < min(_FEWEST_LANES, most) and group_of(block) is None
    return len(loops) > 1 and (is_narrow or max(strides, default=0) > 1)


def vectorize_within_groups(schedule: Schedule, loops: list[LoopRV], group: int | None, most: int) -> list[LoopRV]:
    """Vectorize the last loop; return the loops around vectors, without one that is split at its border.

    Args:
        group: size of the groups that are apart in the source. No vector reaches into the next, its parts would be
            fetched one by one.
    """
    if group and extent(schedule, loops[-1]) % group == 0:
        loops = [*loops[:-1], *schedule.split(loops[-1], [None, group])]
    size = extent(schedule, loops[-1])
    width = vector_width(size, most)
    is_cut = bool(group) and 2 * width < most < size
    outside, lanes = schedule.split(loops[-1], [None, most if is_cut else width])
    if is_cut:
        split_at_borders(schedule, outside)
    if is_cut or width > 1:
        schedule.vectorize(lanes)
    return loops[:-1] if is_cut else [*loops[:-1], outside]


def _deciding_axes(block: SBlock) -> list[int]:
    """Return the axes whose positions decide the computation."""
    names = {name for condition in _conditions(block) for name in names_in(condition)}
    return [axis for axis, iterator in enumerate(block.iter_vars) if iterator.var.name in names]


def _deciding_period(block: SBlock) -> int | None:
    """Return the period along the last axis after which decisions repeat, as in each head of a rotary embedding."""
    *_, last = [iterator.var for iterator in block.iter_vars]
    periods: set[int] = set()

    def visit(remainder: prim.FloorMod) -> None:
        if remainder.a.same_as(last) and isinstance(remainder.b, IntImm):
            periods.add(int(remainder.b))

    for condition in _conditions(block):
        tvm_ffi.structural_walk(condition, [(prim.FloorMod, visit)])
    return periods.pop() if len(periods) == 1 else None


def _conditions(block: SBlock) -> list[Expr]:
    found: list[Expr] = []

    def visit(call: Call) -> None:
        if isinstance(call.op, Op) and call.op.name == "prim.if_then_else":
            found.append(call.args[0])

    tvm_ffi.structural_walk(block.body, [(Call, visit)])
    return found


def _width_between_borders(block: SBlock, most: int) -> int:
    """Return how many neighbours along the last axis are always decided alike, up to `most`; 1 if that is unknown.

    Compilers make vectors of long pieces themselves. Pieces of a few vectors they write out, and take along another
    axis, element by element.
    """
    last = block.iter_vars[-1].var
    found = most
    for condition in _conditions(block):
        if last.name not in names_in(condition):
            continue
        if not isinstance(condition, prim.LE | prim.LT) or not isinstance(border := _border(condition, last), IntImm):
            return 1
        found = math.gcd(found, int(border))
    return found


def _border(condition: prim.LE | prim.LT, axis: Var) -> Expr | None:
    """Return the first position on the other side, if the condition is "border <= axis" or "axis < border"."""
    left, right = (condition.a, condition.b) if isinstance(condition, prim.LE) else (condition.b, condition.a)
    return left if right.same_as(axis) else None


def _turned_axis(block: SBlock) -> int | None:
    """Return the axis along which a read has stride 1 but the result does not; None if there is none."""
    *others, last = [iterator.var for iterator in block.iter_vars]
    for region in block.reads:
        if not region.region or last.name not in {name for index in region.region for name in names_in(index.min)}:
            continue
        along = region.region[-1].min
        turned = [axis for axis, var in enumerate(others) if stride_of(along, var) == 1]
        if turned and last.name not in names_in(along):
            return turned[-1]
    return None


def _turn(schedule: Schedule, loops: list[LoopRV], turned: int) -> list[LoopRV]:
    """Tile two axes; return the loops around the tiles."""
    rows, row = schedule.split(loops[turned], [None, _side(schedule, loops[turned])])
    columns, column = schedule.split(loops[-1], [None, _side(schedule, loops[-1])])
    outer = [rows if axis == turned else loop for axis, loop in enumerate(loops[:-1])]
    schedule.reorder(*outer, columns, row, column)
    if extent(schedule, column) == _BLOCK:
        schedule.vectorize(column)
    return [*outer, columns]


def _side(schedule: Schedule, loop: LoopRV) -> int:
    size = extent(schedule, loop)
    return max(side for side in range(1, _BLOCK + 1) if size % side == 0)
