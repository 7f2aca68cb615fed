"""The tiles of a product that fit a processor's registers, and an estimate of their cost.

A tile is `y * x` rows times `vectors` vectors of columns. Each step of the reduction loads one number per row and one
vector per column vector, and does `y * x * vectors` multiply-adds.
"""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass

from fleet.spaces.blocks import Product, Role
from fleet.spaces.facts import ProcessorFacts

_MOST_ROWS = 28
"""Rows of a tile: more would only lengthen the code."""


_MOST_VECTORS = 12

_FEWEST_LANES = 4
"""Minimum lanes of a cut vector, which must be a power of two: LLVM splits others."""

_SPARE_REGISTERS = 3
"""LLVM spills when accumulators take more: a tile of 14 rows in 16 registers was 2 to 3 times slower than one of 13."""

_SHARED_CACHE_BYTES = 2 * 1024**2
"""Share of the last cache that a layer can count on, beside the rest of its model and others."""


_PANEL_BYTES = 64 * 1024
"""Sums of a panel that wait in memory: a part of the second cache."""

_DEPTHS = (512, 256, 128)
_LINE_BYTES = 64

_SETS_BYTES, _WAYS = 4096, 6
"""Lines that are a multiple of the first apart share one place in the first cache, which holds 8 lines or more: data
and weights."""


class Order(enum.Enum):
    """Outermost of the loops around the tiles."""

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

    depth: int = 0
    """Steps of the innermost reduction after which the next rows pass, so that the weights of these steps stay in the
    cache while the sums wait in memory; 0: a tile is finished before the next begins."""

    last: int = 0
    """Numbers in the last vector, if it is cut; 0: all vectors are whole."""

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes - (self.lanes - self.last if self.last else 0)


def tiles(product: Product, facts: ProcessorFacts) -> list[Tile]:
    """Return all sensible tiles, the most promising first, by `cycles_per_product`."""
    return [*_sorted_tiles(product, facts)]


@functools.lru_cache(maxsize=64)
def _sorted_tiles(product: Product, facts: ProcessorFacts) -> tuple[Tile, ...]:
    height, width = ([1, 1, *_rows(product)])[-2:]
    found = [
        Tile(y, x, vectors, lanes, order, unroll, depth, last)
        for vectors, lanes, last in _vectors(_columns(product), facts)
        for x in range(1, min(width, _MOST_ROWS) + 1)
        for y in divisors(height, 7)
        if fits_registers(Tile(y, x, vectors, lanes, Order.ROWS), facts)
        for order in Order
        for unroll in (1, 4)
        for depth in (0, *_depths(Tile(y, x, vectors, lanes, order, unroll), product, facts))
        if _last_sum(product) % unroll == 0
        and (order is Order.ROWS or depth or vectors * lanes < _columns(product))  # otherwise both orders are equal
    ]
    return tuple(sorted(found, key=lambda tile: cycles_per_product(tile, product, facts)))


def cycles_per_product(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles per multiply-add of one number on one core, including load imbalance between cores.

    The figures were fitted to convolutions on Zen 3 and Zen 5; only the order that they make matters.
    """
    sums = tile.y * tile.x * tile.vectors
    summed = product.extent(Role.SUM)
    step = step_cycles(tile, width_of(product), facts)
    # Each tile begins and ends: accumulators are cleared and stored, the loop is entered.
    begin = (2 * sums + 8) / summed
    if tile.depth:  # sums are loaded and stored for each part of the weights, and a branch is mispredicted
        begin += (1.5 * sums + 25) / tile.depth
    step += begin + _weights_cycles(tile, product, facts) + _conflict_cycles(tile, product)
    if tile.order is Order.COLUMNS:
        step += _data_cycles(tile, product, facts)
    writing = _writing_cycles(tile, product, facts) / summed
    step = max(step, writing) + 0.1 * min(step, writing)
    tasks = _tasks(tile, product)
    rounds = math.ceil(tasks / facts.cores) * facts.cores / tasks
    small = 0.02 * (tile.unroll > 1) + 0.03 * (tile.y > 1)
    return rounds * step * (1 + small) / (tile.y * tile.x * tile.columns)


def _weights_cycles(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles that a step waits for its weights."""
    stream = _cycles_per_vector(product.weights_bytes, facts)
    if tile.order is Order.ROWS:  # all weights stream by, in long runs that the prefetcher predicts
        return tile.vectors * stream
    kept_bytes = product.weights_bytes * tile.columns / product.extent(Role.COLUMN)
    passes = math.ceil(product.extent(Role.ROW) / (tile.y * tile.x))
    if tile.depth:
        kept_bytes *= tile.depth / product.extent(Role.SUM)
        passes = min(passes, math.ceil(rows_of_panel(tile, product) * _row_size(product) / (tile.y * tile.x)))
    if kept_bytes > facts.l2_bytes // 2:
        return tile.vectors * stream
    kept = 0.0 if kept_bytes <= facts.l1_bytes // 2 else 0.05
    return tile.vectors * (kept + stream / passes)


def _data_cycles(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles that a step waits for its data, which are read again for each tile of columns."""
    summed = product.extent(Role.SUM)
    data_bytes = min(4, product.data_bytes / (product.extent(Role.ROW) * summed)) * tile.y * tile.x
    cycles = data_bytes / (16 if product.data_bytes <= facts.l2_bytes // 2 else 10)
    return cycles + 0.5 * tile.y * tile.x * tile.vectors / summed  # results are written in short pieces


def _conflict_cycles(tile: Tile, product: Product) -> float:
    """Estimate the stall cycles of a step because of cache conflicts: its rows are about 4 KiB apart."""
    stride_bytes = 4 * _last_sum(product)
    places = _SETS_BYTES // math.gcd(_SETS_BYTES, stride_bytes)
    return 0.25 * max(0.0, tile.y * tile.x / places - _WAYS)


def _writing_cycles(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles of writing a tile beyond its computation, if the cache cannot absorb it."""
    columns = product.extent(Role.COLUMN)
    if 4 * product.extent(Role.BATCH) * product.extent(Role.ROW) * columns <= facts.l2_bytes:
        return 0.0
    lines = tile.y * tile.x * tile.columns * 4 / _LINE_BYTES
    is_one_run = tile.columns == columns and (tile.y == 1 or tile.x == width_of(product))
    return lines * (12 if is_one_run else 25)


def rows_of_panel(tile: Tile, product: Product) -> int:
    """Return the extent of a panel along the last row axis but one, or along a single row axis."""
    height = product.extent(Role.ROW) // _outer_rows(product) // _row_size(product)
    most = max(1, _PANEL_BYTES // (4 * _row_size(product) * tile.columns))
    return max(size for size in range(1, min(height, most) + 1) if height % size == 0)


def _row_size(product: Product) -> int:
    """Return the number of rows in one step of that axis."""
    return width_of(product) if len(_rows(product)) > 1 else 1


def _outer_rows(product: Product) -> int:
    return math.prod(_rows(product)[:-2])


def _depths(tile: Tile, product: Product, facts: ProcessorFacts) -> list[int]:
    """Return the useful depths: for weights that no cache holds anyway, and more than one tile of rows."""
    last, panel = _last_sum(product), rows_of_panel(tile, product)
    if tile.order is not Order.COLUMNS or tile.unroll > 1 or product.weights_bytes <= facts.l2_bytes // 2:
        return []
    height, width = (panel, width_of(product)) if len(_rows(product)) > 1 else (1, panel)
    if height % tile.y or (len(_rows(product)) == 1 and width % tile.x and width < width_of(product)):
        return []
    if height * width <= tile.y * tile.x:
        return []
    return [depth for depth in _DEPTHS if last % depth == 0 and depth < product.extent(Role.SUM)]


def step_cycles(tile: Tile, width: int, facts: ProcessorFacts) -> float:
    """Estimate the cycles of one reduction step in a tile, for rows of length `width`."""
    full, left = divmod(width, tile.x)  # the last tile of each row is smaller, but hardly faster
    cycles = full * _cycles_of_rows(tile, tile.x, facts) + (_cycles_of_rows(tile, left, facts) if left else 0)
    return cycles * tile.x / width


def _cycles_of_rows(tile: Tile, x: int, facts: ProcessorFacts) -> float:
    rows = tile.y * x
    fmas, loads = rows * tile.vectors / facts.fmas_per_cycle, (rows + tile.vectors) / facts.loads_per_cycle
    # Loads compete with other instructions for the processor's front end, even if its ports have capacity.
    return max(fmas, loads, facts.latency) + 0.15 * loads


def width_of(product: Product) -> int:
    """Return the extent of the innermost row axis."""
    return [1, *_rows(product)][-1]


def _rows(product: Product) -> list[int]:
    return [axis.extent for axis in product.axes if axis.role is Role.ROW]


def _cycles_per_vector(size_bytes: int, facts: ProcessorFacts) -> float:
    """Estimate the cost of a vector in long repeated reads from the cache that fits `size_bytes`."""
    if size_bytes <= facts.l2_bytes // 2:
        return 0.05
    return 0.1 if size_bytes <= _SHARED_CACHE_BYTES else 1.2


def _columns(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.COLUMN][-1]


def _last_sum(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.SUM][-1]


def _tasks(tile: Tile, product: Product) -> int:
    width = width_of(product)
    across = 1 if width % tile.x else width // tile.x
    rows = product.extent(Role.ROW) // width // tile.y * across
    if tile.depth:
        rows = max(1, product.extent(Role.ROW) // (rows_of_panel(tile, product) * _row_size(product)))
    return product.extent(Role.BATCH) * rows * (product.extent(Role.COLUMN) // tile.columns)


def _lanes(columns: int, facts: ProcessorFacts) -> list[int]:
    """Return the widest vector that divides the columns; none if that is a scalar."""
    widths = [facts.lanes >> shift for shift in range(facts.lanes.bit_length() - 1)]
    return [width for width in widths if columns % width == 0][:1]


def _vectors(columns: int, facts: ProcessorFacts) -> list[tuple[int, int, int]]:
    """Return the ways to split the columns: vectors per tile, lanes, and lanes in the last vector if it is cut."""
    whole = [
        (vectors, lanes, 0) for lanes in _lanes(columns, facts) for vectors in divisors(columns // lanes, _MOST_VECTORS)
    ]
    full, last = divmod(columns, facts.lanes)
    is_cut = 0 < full < _MOST_VECTORS and _FEWEST_LANES <= last == last & -last
    return [*whole, *([(full + 1, facts.lanes, last)] if is_cut else [])]


def fits_registers(tile: Tile, facts: ProcessorFacts) -> bool:
    """Tell whether the tile's accumulators and operands fit the registers."""
    sums = tile.y * tile.x * tile.vectors
    scalars = 0 if facts.has_scalar_operands and tile.vectors == 1 else 1
    return sums + tile.vectors + scalars <= facts.registers and sums <= facts.registers - _SPARE_REGISTERS


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number up to a limit, the smallest first."""
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]
