"""Reductions whose innermost axis is not reduced: depthwise convolutions, pooling, means over pixels.

Each lane of a vector reduces a column of its own (a channel). A tile of a few neighbours along the row, times a few
vectors, stays in registers while the reduction runs. Padding is not materialised: rows are split where the windows meet
the border, so tiles within have no conditions (measured on Zen 3: half the time of ONNX Runtime's depthwise kernels,
and a quarter less than with a padded copy).

A tile stays in scope "global": TVM puts small buffers of that scope on the stack, where LLVM turns them into registers.
Within a parallel loop it allocates a "local" one by a call for each tile (measured: a norm over 96 numbers takes five
times as long).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.spaces.blocks import is_reduction, names_in, result_of, stride_of
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import extent, lanes_of, share, split_at_borders, split_by_kind, steps, vector_width
from fleet.spaces.tiles import Order, Tile, fits_registers, step_cycles

if TYPE_CHECKING:
    from tvm.ir import Expr
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV
    from tvm.tirx import Var

_ACCUMULATORS = 8
"""Vectors that are reduced at a time: so many hide the latency of a multiply-add, and 16 registers hold them."""

_TASKS_PER_CORE = 3
"""So many rows for each core are enough to share: blocks of columns are shared, too, only if there are fewer. TVM
simplifies the conditions of a border less if it has to take two loops apart that were fused."""

_MOST_UNROLLED = 16
"""Steps of the reduction's innermost loop that are written out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTile:
    """What stays in registers."""

    row: int
    """Neighbours along the last axis but one."""

    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def reads_along(block: SBlock) -> bool:
    """Tell whether the innermost axis of the result is that of all that the block reads, unless they lack that axis.

    In grouped convolutions it is so within a group.
    """
    from tvm.tirx import IterVar

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
    """Return how many columns in a row read the same data, group by group; None if there are no groups."""
    import tvm_ffi
    from tvm.ir.prim import expr as prim
    from tvm.tirx import IntImm, IterVar

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
    """Return an index as it is in the first group."""
    import tvm_ffi
    from tvm.ir.prim import expr as prim
    from tvm.tirx import const

    def first(division: prim.FloorDiv) -> Expr:
        is_group = division.a.same_as(column) and size and int(division.b) == size
        return const(0, "int32") if is_group else division

    return tvm_ffi.structural_map(index, [(prim.FloorDiv, first)]) if size else index


def schedule_columns(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> bool:
    """Schedule a reduction by columns, together with its only user if that has the same loops.

    Returns:
        False: it is no such reduction, or there is no vector for its columns; nothing was changed.
    """
    if not is_reduction(schedule.get(block)) or not reads_along(schedule.get(block)):
        return False
    spatial, sums = split_by_kind(schedule, block)
    work = steps(schedule, [*spatial, *sums])
    tile = _tile(schedule, block, spatial, facts)
    if tile is None:
        return False
    result = result_of(schedule, block)
    *outer, columns = schedule.get_loops(result)
    rows, row_tiles, within = outer, [], []
    if tile.row > 1:
        outside, inside = schedule.split(outer[-1], [None, tile.row])
        rows, row_tiles, within = outer[:-1], [outside], [inside]
    group = group_of(schedule.get(block))
    if group:
        groups, columns = schedule.split(columns, [None, group])
        rows.append(groups)
    is_even = extent(schedule, columns) % tile.columns == 0
    blocks, vectors, lanes = schedule.split(columns, [None, tile.vectors, tile.lanes])
    within.append(vectors)
    schedule.reorder(*rows, blocks, *row_tiles, *within, lanes)
    are_enough = steps(schedule, rows) >= _TASKS_PER_CORE * facts.cores or not is_even
    shared = rows if are_enough else [*rows, blocks]
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
    return True


def _tile(schedule: Schedule, block: SBlockRV, spatial: list[LoopRV], facts: ProcessorFacts) -> ColumnTile | None:
    group = group_of(schedule.get(block))
    columns = group or extent(schedule, spatial[-1])
    most = lanes_of(schedule.get(block), facts)
    width = vector_width(columns, most)
    if 2 * width < most < columns and not group:
        width = most  # the last vector is cut; within groups, TVM cannot tell then that all lanes read the same data
    if width == 1:
        return None
    if group:
        return _tile_in_group(columns // width, width, extent(schedule, spatial[-2]) if len(spatial) > 1 else 1, facts)
    row = extent(schedule, spatial[-2]) if len(spatial) > 1 and _is_windowed(schedule.get(block)) else 1
    row = row if row <= _ACCUMULATORS else _ACCUMULATORS // 2
    vectors = vector_width(columns // width, max(1, _ACCUMULATORS // row)) if columns % width == 0 else 1
    if row == 1:  # one wide vector: LLVM keeps all of its parts in registers
        return ColumnTile(row=1, vectors=1, lanes=vectors * width)
    return ColumnTile(row=row, vectors=vectors, lanes=width)


def _tile_in_group(vectors: int, lanes: int, row: int, facts: ProcessorFacts) -> ColumnTile:
    """Return the tile of a group's `vectors` vectors and a row's `row` neighbours that takes the fewest cycles.

    All lanes read the same data, so it is a tile of a product, of which weights are not packed.
    """
    tiles = [
        Tile(y=1, x=x, vectors=count, lanes=lanes, order=Order.ROWS)
        for count in range(1, vectors + 1)
        if vectors % count == 0
        for x in range(1, row + 1)
    ]
    best = min(
        (tile for tile in tiles if fits_registers(tile, facts)),
        key=lambda tile: step_cycles(tile, row, facts) / (tile.x * tile.vectors),
    )
    return ColumnTile(row=best.x, vectors=best.vectors, lanes=lanes)


def _is_windowed(block: SBlock) -> bool:
    """Tell whether neighbours along a row share what they read: pixels of overlapping windows, or weights."""
    from tvm.tirx import IterVar

    along = [it.var.name for it in block.iter_vars if it.iter_type == IterVar.DataPar][-2]
    sums = {it.var.name for it in block.iter_vars if it.iter_type != IterVar.DataPar}
    return any(
        along in used and used & sums
        for region in block.reads
        for used in (names_in(index.min) for index in region.region)
    )


def _schedule_tile(schedule: Schedule, block: SBlockRV, tile: ColumnTile, depth: int) -> None:
    """Put the reduction outside of the tile."""
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
