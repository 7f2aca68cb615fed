"""The tiles of a product that fit a processor's registers, and an estimate of what each costs.

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
    return [*_sorted_tiles(product, facts)]


@functools.lru_cache(maxsize=64)
def _sorted_tiles(product: Product, facts: ProcessorFacts) -> tuple[Tile, ...]:
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
    return tuple(sorted(found, key=lambda tile: cycles_per_product(tile, product, facts)))


def cycles_per_product(tile: Tile, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles per multiply-add of one number, on one core, and what the cores wait for each other.

    The figures were fitted to convolutions on Zen 3; only the order that they make matters.
    """
    sums = tile.y * tile.x * tile.vectors
    step = step_cycles(tile, width_of(product), facts)
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


def step_cycles(tile: Tile, width: int, facts: ProcessorFacts) -> float:
    """Estimate the cycles of one step of the reduction in a tile, where rows are `width` long."""
    full, left = divmod(width, tile.x)  # the last tile of each row is smaller, but hardly faster
    cycles = full * _cycles_of_rows(tile, tile.x, facts) + (_cycles_of_rows(tile, left, facts) if left else 0)
    return cycles * tile.x / width


def _cycles_of_rows(tile: Tile, x: int, facts: ProcessorFacts) -> float:
    rows = tile.y * x
    fmas, loads = rows * tile.vectors / facts.fmas_per_cycle, (rows + tile.vectors) / facts.loads_per_cycle
    # Loads compete with the rest for the front of the processor, even where its ports have room for them.
    return max(fmas, loads, facts.latency) + 0.1 * loads


def width_of(product: Product) -> int:
    """Return the extent of the innermost row axis."""
    return ([1, *(axis.extent for axis in product.axes if axis.role is Role.ROW)])[-1]


def _cycles_per_vector(size_bytes: int, facts: ProcessorFacts) -> float:
    """Estimate what a vector costs that is read in a long run, again and again, from where `size_bytes` fit."""
    if size_bytes <= facts.l2_bytes // 2:
        return 0.05
    return 0.1 if size_bytes <= _SHARED_CACHE_BYTES else 1.0


def _columns(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.COLUMN][-1]


def _last_sum(product: Product) -> int:
    return [axis.extent for axis in product.axes if axis.role is Role.SUM][-1]


def _tasks(tile: Tile, product: Product) -> int:
    width = width_of(product)
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
