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

if TYPE_CHECKING:
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV

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
    """Tell whether the innermost axis of the result is that of all that the block reads, unless they lack that axis."""
    from tvm.tirx import IterVar

    columns = [it.var for it in block.iter_vars if it.iter_type == IterVar.DataPar][-1:]
    strides = [stride_of(region.region[-1].min, var) for region in block.reads for var in columns if region.region]
    others = {name for region in block.reads for index in region.region[:-1] for name in names_in(index.min)}
    return 1 in strides and set(strides) <= {0, 1} and not others & {var.name for var in columns}


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
    is_even = extent(schedule, columns) % tile.columns == 0
    blocks, lanes = schedule.split(columns, [None, tile.columns])
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
    _schedule_tile(schedule, block, depth)
    return True


def _tile(schedule: Schedule, block: SBlockRV, spatial: list[LoopRV], facts: ProcessorFacts) -> ColumnTile | None:
    columns = extent(schedule, spatial[-1])
    most = lanes_of(schedule.get(block), facts)
    width = vector_width(columns, most)
    if 2 * width < most < columns:
        width = most  # the last vector is cut
    if width == 1:
        return None
    row = extent(schedule, spatial[-2]) if len(spatial) > 1 and _is_windowed(schedule.get(block)) else 1
    row = row if row <= _ACCUMULATORS else _ACCUMULATORS // 2
    vectors = vector_width(columns // width, max(1, _ACCUMULATORS // row)) if columns % width == 0 else 1
    return ColumnTile(row=row, vectors=vectors, lanes=width)


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


def _schedule_tile(schedule: Schedule, block: SBlockRV, depth: int) -> None:
    """Put the reduction outside of the tile."""
    spatial, sums = split_by_kind(schedule, block, depth)
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
