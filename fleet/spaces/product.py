"""The design space of sums of products: convolutions and matrix products on processors.

A tile of the result stays in registers while the reduction runs outside of it, as in the kernels of BLAS libraries
(K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008): `y * x` rows times `vectors`
vectors of columns. Each step loads one number per row and one vector per column vector, and does `y * x * vectors`
multiply-adds. Constant weights are packed so that a tile reads them in one stream.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.spaces.blocks import Product, Role, result_of
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import split_at_borders

if TYPE_CHECKING:
    from tvm.ir import PrimExpr
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV

_MOST_ROWS = 28
"""Rows of a tile: more would only lengthen the code."""


_SPARE_REGISTERS = 3
"""LLVM spills when accumulators take more: a tile of 14 rows in 16 registers was 2 to 3 times slower than one of 13."""

_SHARED_CACHE_BYTES = 2 * 1024**2
"""What a layer can expect to find again in the last cache, which it shares with the rest of its model and others."""


class Order(enum.Enum):
    """Which of the loops around the tiles is the outermost."""

    ROWS = "rows"
    """Weights stream by for each tile of rows: for few columns, or weights that fit the cache."""

    COLUMNS = "columns"
    """The weights of one tile of columns stay in the cache while all rows pass."""


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """One choice of all knobs."""

    y: int
    x: int
    """Rows, along the last two row axes of the result."""

    vectors: int
    lanes: int
    order: Order
    unroll: int = 1
    """Steps of the innermost reduction that are written out."""

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def tiles(product: Product, facts: ProcessorFacts) -> list[Tile]:
    """Return all sensible tiles, the most promising first, by `cycles_per_product`."""
    rows = [axis.extent for axis in product.axes if axis.role is Role.ROW]
    height, width = ([1, 1, *rows])[-2:]
    found = [
        Tile(y, x, vectors, lanes, order, unroll)
        for lanes in _lanes(_columns(product), facts)
        for vectors in _divisors(_columns(product) // lanes, 8)
        for x in range(1, min(width, _MOST_ROWS) + 1)
        for y in _divisors(height, 7)
        for order in Order
        for unroll in (1, 4)
        if _fits(Tile(y, x, vectors, lanes, order), facts) and _last_sum(product) % unroll == 0
    ]
    return sorted(found, key=lambda tile: cycles_per_product(tile, product, facts))


def cycles_per_product(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles per multiply-add of one number, on one core, and what the cores wait for each other.

    The figures were fitted to convolutions on Zen 3; only the order that they make matters.
    """
    sums = tile.y * tile.x * tile.vectors
    step = _step_cycles(tile, tile.x, facts)
    width = _width(product)
    if width % tile.x:  # the last tile of each row is smaller, but hardly faster
        full, left = divmod(width, tile.x)
        step = (full * step + _step_cycles(tile, left, facts)) * tile.x / width
    summed, rows = product.extent(Role.SUM), product.extent(Role.ROW)
    # Each tile begins and ends: accumulators are cleared and stored, the loop is entered.
    begin = (2 * sums + 8) / summed
    if tile.order is Order.ROWS:  # all weights stream by, in long runs that the processor foresees
        again = tile.vectors * _cycles_per_vector(product.weights_bytes, facts)
    else:  # the tile's data comes again for each tile of columns
        panel_bytes = product.weights_bytes * tile.columns / product.extent(Role.COLUMN)
        data_bytes = min(4, product.data_bytes / (rows * summed)) * tile.y * tile.x
        again = data_bytes / (16 if product.data_bytes <= facts.l2_bytes // 2 else 10)
        again += 0.0 if panel_bytes <= facts.l1_bytes // 2 else 0.05 * tile.vectors
        again += 0.5 * sums / summed  # results are written in short pieces
    tasks = _tasks(tile, product)
    rounds = math.ceil(tasks / facts.cores) * facts.cores / tasks
    small = 0.02 * (tile.unroll > 1) + 0.01 * (tile.y > 1)
    return rounds * (step + begin + again) * (1 + small) / (sums * tile.lanes)


def _step_cycles(tile: Tile, x: int, facts: ProcessorFacts) -> float:
    """Estimate the cycles of one step of the reduction in a tile of `x` rows."""
    rows = tile.y * x
    fmas, loads = rows * tile.vectors / facts.fmas_per_cycle, (rows + tile.vectors) / facts.loads_per_cycle
    # Loads compete with the rest for the front of the processor, even where its ports have room for them.
    return max(fmas, loads, facts.latency) + 0.1 * loads


def _width(product: Product) -> int:
    """Return the extent of the innermost row axis."""
    return ([1, *(axis.extent for axis in product.axes if axis.role is Role.ROW)])[-1]


def _cycles_per_vector(size_bytes: int, facts: ProcessorFacts) -> float:
    """Estimate what a vector costs that is read in a long run, again and again, from where `size_bytes` fit."""
    if size_bytes <= facts.l2_bytes // 2:
        return 0.05
    return 0.1 if size_bytes <= _SHARED_CACHE_BYTES else 1.0


def schedule_product(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, *, packs: bool) -> None:
    """Apply a tile to a product and to all that is computed before and after it.

    Args:
        packs: reorder the weights, which must be constant, so that a tile reads them in one stream: the parameter gets
            the shape [columns / tile.columns, ..., tile.columns].
    """
    if packs:
        _pack(schedule, block, product, tile)
    result = result_of(schedule, block)
    outer, inner = _tile_result(schedule, result, product, tile)
    # The tile stays in scope "global": a "local" buffer in a parallel loop comes from the heap, by two calls a tile.
    schedule.compute_at(block, outer[-1], preserve_unit_loops=True)
    sums, spatial = _tile_product(schedule, block, product, tile, len(outer))
    schedule.vectorize(inner[-1])
    for loop in inner[:-1]:
        schedule.unroll(loop)
    if _width(product) % tile.x:
        # Without the conditions of the smaller last tile in the others.
        split_at_borders(schedule, outer.pop())
    schedule.parallel(schedule.fuse(*outer))
    begin = schedule.decompose_reduction(block, sums[0])
    for loop in schedule.get_loops(begin)[-len(spatial) : -1]:
        schedule.unroll(loop)


def _pack(schedule: Schedule, block: SBlockRV, product: Product, tile: Tile) -> None:
    from tvm.tirx import IndexMap

    axis, size = product.column_axis, tile.columns
    if axis is None:
        return

    def packed(*indices: PrimExpr) -> list[PrimExpr]:
        others = [index for position, index in enumerate(indices) if position != axis]
        return [indices[axis] // size, *others, indices[axis] % size]

    shape = schedule.get(block).reads[product.weights].source.shape
    index_map = IndexMap.from_func(packed, ndim=len(shape), index_dtype=str(shape[0].ty.dtype))
    schedule.transform_layout(block, ("read", product.weights), index_map)


def _tile_result(
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
    elif _width(product) % tile.x:  # the loop with the smaller tile is a loop of its own, the innermost
        around = [*outer_rows[:-1], *columns[:-1], blocks, outer_rows[-1]]
    outer, inner = [*batches, *around], [*inner_rows, vectors, lanes]
    schedule.reorder(*outer, *inner)
    return outer, inner


def _tile_product(
    schedule: Schedule, block: SBlockRV, product: Product, tile: Tile, depth: int
) -> tuple[list[LoopRV], list[LoopRV]]:
    """Put the reduction outside of the tile; return the loops of both."""
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
    return sums, spatial


def _columns(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.COLUMN][-1]


def _last_sum(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.SUM][-1]


def _tasks(tile: Tile, product: Product) -> int:
    width = _width(product)
    across = 1 if width % tile.x else width // tile.x
    rows = product.extent(Role.ROW) // width // tile.y * across
    return product.extent(Role.BATCH) * rows * (product.extent(Role.COLUMN) // tile.columns)


def _lanes(columns: int, facts: ProcessorFacts) -> list[int]:
    """Return the widest vector that divides the columns; none if that is a scalar."""
    widths = [facts.lanes >> shift for shift in range(facts.lanes.bit_length() - 1)]
    return [width for width in widths if columns % width == 0][:1]


def _fits(tile: Tile, facts: ProcessorFacts) -> bool:
    """Tell whether the tile's accumulators and operands fit the registers."""
    sums = tile.y * tile.x * tile.vectors
    scalars = 0 if facts.has_scalar_operands and tile.vectors == 1 else 1
    return sums + tile.vectors + scalars <= facts.registers and sums <= facts.registers - _SPARE_REGISTERS


def _divisors(number: int, most: int) -> list[int]:
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
