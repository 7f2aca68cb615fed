"""Schedules sums of products on processors: convolutions and matrix products.

A tile of the result stays in registers while the reduction runs outside of it, as in the kernels of BLAS libraries
(K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Constant weights are packed so
that a tile reads them in one stream. Which tiles there are: `fleet.spaces.tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import Expr
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import IndexMap

from fleet.spaces.blocks import Product, Role, result_of
from fleet.spaces.loops import split_at_borders
from fleet.spaces.tiles import Order, Tile, rows_of_panel, width_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A product that is computed inside the loops over its tile of the result."""

    block: SBlockRV
    outer: tuple[LoopRV, ...]
    """The result's loops around tiles."""

    inner: tuple[LoopRV, ...]
    """The loops within tiles."""


def schedule_product(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, *, packs: bool) -> None:
    """Apply a tile to a product and to everything computed before and after it.

    Args:
        packs: reorder the weights, which must be constant, so that a tile reads them in one stream: the parameter gets
            the shape [columns / tile.columns, ..., tile.columns].
    """
    if not tile.depth:
        finish_product(schedule, place_product(schedule, block, product, tile, packs=packs), product, tile)
        return
    if packs:
        pack(schedule, block, product, tile)
    _schedule_panels(schedule, block, product, tile)


def place_product(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, *, packs: bool) -> Placed:
    """Apply the first part of a tile without depth, which `tile.unroll` does not affect."""
    if packs:
        pack(schedule, block, product, tile)
    outer, inner = tile_result(schedule, result_of(schedule, block), product, tile)
    # The tile stays in scope "global": a "local" buffer in a parallel loop is allocated on the heap, by two calls per
    # tile.
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    return Placed(block=block, outer=tuple(outer), inner=tuple(inner))


def finish_product(schedule: Schedule, placed: Placed, product: Product, tile: Tile) -> None:
    """Apply the rest of a tile."""
    block, outer = placed.block, list(placed.outer)
    sums = tile_product(schedule, block, product, tile, len(outer))
    within = len(schedule.get_loops(block)) - len(outer)
    schedule.vectorize(placed.inner[-1])
    for loop in placed.inner[:-1]:
        schedule.unroll(loop)
    if width_of(product) % tile.x:
        # Peels off the smaller last tile, so that full tiles have no bounds checks.
        split_at_borders(schedule, outer.pop())
    schedule.parallel(schedule.fuse(*outer))
    clear_before(schedule, block, sums, len(schedule.get_loops(block)) - within)


def pack(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile) -> None:
    """Reorder a product's weights so that a tile reads them in one stream."""
    axis, size = product.column_axis, tile.columns
    if axis is None:
        return

    def packed(*indices: Expr) -> list[Expr]:
        others = [index for position, index in enumerate(indices) if position != axis]
        return [indices[axis] // size, *others, indices[axis] % size]

    shape = schedule.get(block).reads[product.weights].source.shape
    index_map = IndexMap.from_func(packed, ndim=len(shape), index_dtype=str(shape[0].ty.dtype))
    schedule.transform_layout(block, ("read", product.weights), index_map)


def tile_result(
    schedule: Schedule, result: SBlockRV, product: Product, tile: Tile
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Split the loops of the result; return those around tiles and those within."""
    loops = schedule.get_loops(result)
    roles = [axis.role for axis in product.axes if axis.role is not Role.SUM]
    batches = [loop for loop, role in zip(loops, roles, strict=True) if role is Role.BATCH]
    rows = [loop for loop, role in zip(loops, roles, strict=True) if role is Role.ROW]
    columns = [loop for loop, role in zip(loops, roles, strict=True) if role is Role.COLUMN]
    blocks, vectors, lanes = schedule.split(columns[-1], [None, tile.vectors, tile.lanes])
    outer_rows, inner_rows = rows[:-2], []
    for loop, size in zip(rows[-2:], (tile.y, tile.x)[-len(rows[-2:]) :] if rows else (), strict=True):
        outside, inside = schedule.split(loop, [None, size])
        outer_rows.append(outside)
        inner_rows.append(inside)
    around = [*outer_rows, *columns[:-1], blocks]
    if tile.order is Order.COLUMNS:
        around = [*columns[:-1], blocks, *outer_rows]
    elif width_of(product) % tile.x:  # the loop with the smaller tile is a separate loop, the innermost
        around = [*outer_rows[:-1], *columns[:-1], blocks, outer_rows[-1]]
    outer, inner = [*batches, *around], [*inner_rows, vectors, lanes]
    schedule.reorder(*outer, *inner)
    return outer, inner


def tile_product(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, depth: int) -> LoopRV:
    """Move the reduction outside of the tile, below the first `depth` loops; return its outermost loop."""
    loops = schedule.get_loops(block)[depth:]
    sums = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is Role.SUM]
    spatial = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is not Role.SUM]
    vectors, lanes = schedule.split(spatial[-1], [tile.vectors, tile.lanes])
    spatial = [*spatial[:-1], vectors, lanes]
    if tile.unroll > 1:
        outside, inside = schedule.split(sums[-1], [None, tile.unroll])
        sums = [*sums[:-1], outside, inside]
    schedule.reorder(*sums, *spatial)
    schedule.vectorize(lanes)
    for loop in spatial[:-1]:
        schedule.unroll(loop)
    if tile.unroll > 1:
        schedule.unroll(sums[-1])
    return sums[0]


def clear_before(schedule: Schedule, block: SBlockRV, sums: LoopRV, depth: int) -> None:
    """Clear the tile below `depth` loops before its reduction; no surrounding loop can be parallelized after that."""
    begin = schedule.decompose_reduction(block, sums)
    for loop in schedule.get_loops(begin)[depth:-1]:
        schedule.unroll(loop)


def _schedule_panels(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile) -> None:
    """Process all rows with a part of the weights that fits the cache, before the next part: sums stay in memory."""
    result = result_of(schedule, block)
    loops = schedule.get_loops(result)
    roles = [axis.role for axis in product.axes if axis.role is not Role.SUM]
    batches, rows, columns = (
        [loop for loop, role in zip(loops, roles, strict=True) if role is wanted]
        for wanted in (Role.BATCH, Role.ROW, Role.COLUMN)
    )
    blocks, vectors, lanes = schedule.split(columns[-1], [None, tile.vectors, tile.lanes])
    group, within = schedule.split(rows[-2:][0], [None, rows_of_panel(tile, product)])
    outer = [*batches, *columns[:-1], blocks, *rows[:-2], group]
    schedule.reorder(*outer, within, *rows[-2:][1:], vectors, lanes)
    schedule.compute_at(block, group, preserve_unit_loops=True)
    schedule.vectorize(lanes)
    schedule.unroll(vectors)
    sums, depth = _tile_panel(schedule, block, product, tile, len(outer))
    schedule.parallel(schedule.fuse(*outer))
    begin = schedule.decompose_reduction(block, sums)
    for loop in schedule.get_loops(begin)[-depth:-1]:
        schedule.unroll(loop)


def _tile_panel(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, outside: int) -> tuple[LoopRV, int]:
    """Split the panel below `outside` loops into tiles; return its outermost sum and the number of loops of a tile."""
    loops = schedule.get_loops(block)[outside:]
    sums = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is Role.SUM]
    spatial = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is not Role.SUM]
    rows = [loop for loop, axis in zip(loops, product.axes, strict=True) if axis.role is Role.ROW][-2:]
    others = [loop for loop in spatial[:-1] if loop not in rows]
    vectors, lanes = schedule.split(spatial[-1], [tile.vectors, tile.lanes])
    around, inner = [], []
    for loop, size in zip(rows, (tile.y, tile.x)[-len(rows) :], strict=True):
        outside_loop, inside_loop = schedule.split(loop, [None, size])
        around.append(outside_loop)
        inner.append(inside_loop)
    part, steps = schedule.split(sums[-1], [None, tile.depth])
    outer_sums, inner_sums = [*sums[:-1], part], [steps]
    if tile.unroll > 1:
        inner_sums = list(schedule.split(steps, [None, tile.unroll]))
        schedule.unroll(inner_sums[-1])
    schedule.reorder(*others, *outer_sums, *around, *inner_sums, *inner, vectors, lanes)
    schedule.vectorize(lanes)
    for loop in (*inner, vectors):
        schedule.unroll(loop)
    if width_of(product) % tile.x:
        split_at_borders(schedule, around[-1])
    return outer_sums[0], len(inner) + 2
