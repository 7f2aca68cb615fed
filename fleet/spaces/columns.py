"""Schedules reductions that keep the innermost axis: depthwise convolutions, pooling, means over pixels.

Each lane of a vector reduces a column of its own (a channel). A tile of a few neighbours along the row, times a few
vectors, stays in registers while the reduction runs. Padding of rows is not materialised: they are split where the
windows meet the border, so tiles within have no conditions (measured on Zen 3: half the time of ONNX Runtime's
depthwise kernels, and a quarter less than with a padded copy). That of columns is (`fleet.spaces.padding`).

A tile stays in scope "global": TVM puts small buffers of that scope on the stack, where LLVM turns them into registers.
Within a parallel loop it allocates a "local" one by a call for each tile (measured: a norm over 96 numbers takes five
times as long).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm.ir import Expr
from tvm.ir.prim import expr as prim
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx import IntImm, IterVar, Var, const

from fleet.spaces.blocks import is_reduction, names_in, result_of, stride_of
from fleet.spaces.column_tiles import ColumnSums, ColumnTile, column_tiles
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import enough, extent, lanes_of, share, split_at_borders, split_by_kind, steps
from fleet.spaces.padding import pad_within, padding_of
from fleet.spaces.tiles import Order

_TASKS_PER_CORE = 3
"""Rows per core from which only rows are distributed over the cores; with fewer, blocks of columns are, too. TVM
simplifies border conditions less if it has to split two fused loops.
"""

_MOST_UNROLLED = 16
"""Steps of the reduction's innermost loop that are written out."""


def reads_along(block: SBlock) -> bool:
    """Tell whether the result's innermost axis is also innermost in all that the block reads, or absent there.

    In grouped convolutions it is so within a group.
    """
    columns = [it for it in block.iter_vars if it.iter_type == IterVar.DataPar][-1:]
    size = group_of(block) or 0
    strides: set[int | None] = set()
    others: set[int | None] = {0}
    for column in columns:
        for region in block.reads:
            *outer, last = [within_group(index.min, column.var, size) for index in region.region] or [None]
            strides.add(0 if last is None else stride_of(last, column.var))
            others |= {stride_of(index, column.var) for index in outer if index is not None}
    return 1 in strides and strides <= {0, 1} and others == {0}


def group_of(block: SBlock) -> int | None:
    """Return the number of consecutive columns that read the same data; None without groups."""
    columns = [it.var for it in block.iter_vars if it.iter_type == IterVar.DataPar][-1:]
    sizes: set[int] = set()

    def visit(division: prim.FloorDiv) -> None:
        if any(division.a.same_as(var) for var in columns) and isinstance(division.b, IntImm):
            sizes.add(int(division.b))

    for region in block.reads:
        for index in region.region:
            tvm_ffi.structural_walk(index.min, [(prim.FloorDiv, visit)])
    return sizes.pop() if len(sizes) == 1 else None


def within_group(index: Expr, column: Var, size: int) -> Expr:
    """Return an index as it would be in the first group."""

    def first(division: prim.FloorDiv) -> Expr:
        is_group = division.a.same_as(column) and size and int(division.b) == size
        return const(0, "int32") if is_group else division

    return tvm_ffi.structural_map(index, [(prim.FloorDiv, first)]) if size else index


def schedule_columns(
    schedule: Schedule, block: SBlockRV, facts: ProcessorFacts, tile: ColumnTile | None = None
) -> bool:
    """Schedule a reduction by columns, together with its only user if that has the same loops.

    Args:
        tile: one of `tiles_of`; None: the most promising one.

    Returns:
        False: it is no such reduction, or there is no vector for its columns; nothing was changed.
    """
    tile = tile or next(iter(tiles_of(schedule, block, facts)), None)
    if tile is None:
        return False
    spatial, sums = split_by_kind(schedule, block)
    work = steps(schedule, [*spatial, *sums])
    group = group_of(schedule.get(block))
    result = result_of(schedule, block)
    *rows, columns = schedule.get_loops(result)
    row_tiles, within = [], []
    if tile.row > 1:
        outside, inside = schedule.split(rows.pop(), [None, tile.row])
        row_tiles, within = [outside], [inside]
    groups, columns = schedule.split(columns, [None, group]) if group else (None, columns)
    is_even = extent(schedule, columns) % tile.columns == 0
    blocks, vectors, lanes = schedule.split(columns, [None, tile.vectors, tile.lanes])
    within.append(vectors)
    around = [blocks] if groups is None else [groups, blocks]
    by_columns = tile.order is Order.COLUMNS and is_even
    padding = padding_of(schedule, block) if rows and is_even else None
    if padding is not None:  # a row of tiles reads one padded row
        outer = rows
        schedule.reorder(*rows, *row_tiles, *around, *within, lanes)
    else:
        outer = [*around, *rows] if by_columns else [*rows, *around]
        schedule.reorder(*outer, *row_tiles, *within, lanes)
    shared = enough(schedule, outer, facts, tasks_per_core=_TASKS_PER_CORE) if is_even else outer[:-1]
    if shared:
        share(schedule, shared, work)
    depth = len(schedule.get_loops(result)) - len(within) - 1
    schedule.compute_at(block, schedule.get_loops(result)[depth - 1], preserve_unit_loops=True)
    for loop in (*row_tiles, *(() if is_even else (blocks,))):
        split_at_borders(schedule, loop)
    schedule.vectorize(lanes)
    for loop in within:
        schedule.unroll(loop)
    _schedule_tile(schedule, block, tile, depth)
    if padding is not None:
        pad_within(schedule, padding, schedule.get_loops(result)[depth - len(around) - 1])
    return True


def tiles_of(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> list[ColumnTile]:
    """Return the tiles of a reduction by columns, the most promising first; none for other blocks."""
    own = schedule.get(block)
    if not is_reduction(own) or not reads_along(own):
        return []
    spatial, sums = split_by_kind(schedule, block)
    group, window = group_of(own), _window(own)
    found = ColumnSums(
        columns=group or extent(schedule, spatial[-1]),
        lanes=lanes_of(own, facts),
        is_grouped=bool(group),
        row=extent(schedule, spatial[-2]) if window is not None or (group and len(spatial) > 1) else 1,
        window=window.size if window else 1,
        stride=window.stride if window else 1,
        steps=steps(schedule, sums) // (window.size if window else 1),
        has_weights=len(own.reads) > 1,
    )
    tiles = column_tiles(found, facts)
    if padding_of(schedule, block) is not None:  # a row of tiles has one padded row
        return [tile for tile in tiles if tile.order is Order.ROWS]
    return tiles


@dataclass(frozen=True, slots=True)
class _Window:
    """Window that one result reads along a row."""

    size: int
    stride: int
    """Distance between the windows of neighbours."""


def _window(block: SBlock) -> _Window | None:
    """Return the window of a reduction with neighbours along a row that share reads, or None."""
    neighbours = [it.var for it in block.iter_vars if it.iter_type == IterVar.DataPar][-2:-1]
    extents = {it.var.name: int(it.dom.extent) for it in block.iter_vars if it.iter_type != IterVar.DataPar}
    for index in (index.min for region in block.reads for index in region.region):
        used = names_in(index)
        if any(var.name in used for var in neighbours) and used & extents.keys():
            size = math.prod(extents[name] for name in used & extents.keys())
            return _Window(size, stride_of(index, neighbours[0]) or 1)
    return None


def _schedule_tile(schedule: Schedule, block: SBlockRV, tile: ColumnTile, depth: int) -> None:
    """Move the reduction outside of the tile."""
    spatial, sums = split_by_kind(schedule, block, depth)
    spatial[-1:] = schedule.split(spatial[-1], [tile.vectors, tile.lanes])
    schedule.reorder(*sums, *spatial)
    schedule.vectorize(spatial[-1])
    for loop in spatial[:-1]:
        schedule.unroll(loop)
    for loop in reversed(sums[1:]):
        if extent(schedule, loop) > _MOST_UNROLLED:
            break
        schedule.unroll(loop)
        if extent(schedule, loop) > 1:
            break
    begin = schedule.decompose_reduction(block, sums[0])
    for loop in schedule.get_loops(begin)[-len(spatial) : -1]:
        schedule.unroll(loop)
