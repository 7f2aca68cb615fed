"""The tiles of reductions by columns that fit a processor's registers, and an estimate of their cost.

A tile is `row` neighbours times `vectors` vectors of columns. Neighbours share their reads: one step takes them all
through one row of their windows, each vector of data is loaded once, and each of weights once for the whole tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import vector_width
from fleet.spaces.tiles import Order, Tile, fits_registers, step_cycles

_MOST_SUMS = 12
"""Maximum sums of a tile of windows: at most half of the registers, since data and weights in use take the others."""

_MOST_SUMS_IN_GROUPS = 0.8
"""Share of the registers for sums in a grouped convolution: 28 sums in 32 took up to a sixth longer than 18 to 25
(Zen 5).
"""

_MOST_VECTORS = 7
"""If neighbours share nothing: number of sums that hide the latency of an addition."""

_LINE_BYTES = 64
_NUMBER_BYTES = 4
_BYTES_PER_CYCLE = 40
"""From the second cache."""

_SHORT_PIECES = 1.2
"""Factor on the time of reading data in runs of about a cache line. Pools with disjoint windows took up to two
thirds longer.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTile:
    """Tile that stays in registers."""

    row: int
    """Neighbours along the last axis but one."""

    vectors: int
    lanes: int
    order: Order = Order.ROWS
    """Outermost of the loops around the tiles: over rows, or over blocks of columns."""

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSums:
    """Facts about a reduction by columns that its tiles depend on."""

    columns: int
    """Columns of the result, or of a group, if groups of columns read the same data."""

    lanes: int
    """Elements of its widest type per vector register."""

    is_grouped: bool
    row: int
    """Number of neighbouring positions along the second-to-last axis whose windows overlap; 1 if none do."""

    window: int
    """Numbers along the row that one result reads in a step."""

    stride: int
    """Numbers between the windows of neighbours."""

    steps: int
    """Number of such reads: rows of the window."""

    has_weights: bool


def column_tiles(sums: ColumnSums, facts: ProcessorFacts) -> list[ColumnTile]:
    """Return all sensible tiles, the most promising first; none if there is no vector for the columns."""
    lanes = vector_width(sums.columns, sums.lanes)
    is_cut = 2 * lanes < sums.lanes < sums.columns and not sums.is_grouped
    # The last vector is cut; within groups, TVM then cannot tell that all lanes read the same data.
    lanes = sums.lanes if is_cut else lanes
    if lanes == 1:
        return []
    most = 1 if is_cut else sums.columns // lanes
    if sums.is_grouped:
        return _tiles_of_groups(sums, most, lanes, facts)
    if sums.row == 1:
        return [ColumnTile(row=1, vectors=_most_vectors(most), lanes=lanes)]
    return _tiles_of_windows(sums, most, lanes, facts)


def _most_vectors(count: int) -> int:
    return max(vectors for vectors in range(1, _MOST_VECTORS + 1) if count % vectors == 0)


def _tiles_of_windows(sums: ColumnSums, most: int, lanes: int, facts: ProcessorFacts) -> list[ColumnTile]:
    found = [
        ColumnTile(row=row, vectors=vectors, lanes=lanes, order=order)
        for vectors in range(1, most + 1)
        if most % vectors == 0
        for row in range(1, sums.row + 1)
        if row * vectors <= min(_MOST_SUMS, facts.registers // 2)
        for order in (Order.COLUMNS, Order.ROWS)
        if order is Order.ROWS or vectors < most
    ]
    return sorted(found, key=lambda tile: _cycles_per_result(tile, sums, facts))


def _cycles_per_result(tile: ColumnTile, sums: ColumnSums, facts: ProcessorFacts) -> float:
    """Estimate the cycles of one step for a vector of one result."""
    full, left = divmod(sums.row, tile.row)
    cycles = full * _cycles_of_tile(tile.row, tile, sums, facts)
    cycles += _cycles_of_tile(left, tile, sums, facts) if left else 0.0
    several = 1 + 0.05 * (tile.vectors > 1)  # LLVM keeps fewer of the neighbours' data for the next step
    return several * cycles / (sums.row * tile.vectors) + _reading_cycles(tile, sums)


def _cycles_of_tile(row: int, tile: ColumnTile, sums: ColumnSums, facts: ProcessorFacts) -> float:
    products = row * tile.vectors * sums.window
    data = min(row * sums.window, (row - 1) * sums.stride + sums.window)
    loads = tile.vectors * (data + sums.window * sums.has_weights)
    begin = (2 * row * tile.vectors + 8) / sums.steps  # results are cleared and stored, the loop is entered
    return max(products / facts.fmas_per_cycle, loads / facts.loads_per_cycle) + 0.15 * loads + begin


def _reading_cycles(tile: ColumnTile, sums: ColumnSums) -> float:
    """Estimate the cost of loading a result's data from beyond the first-level cache, shared among its steps.

    Row by row, all columns pass before the next row has its windows: shared data is fetched again. With
    blocks of columns outermost it is still there (a depthwise convolution takes half to four fifths of the time on Zen
    5), but that reads short pieces, and lines that are wider than a block are fetched again for the next one.
    """
    if tile.order is Order.ROWS:
        vectors = float(sums.stride * sums.steps)
    else:
        vectors = sums.stride**2 * max(1.0, _LINE_BYTES / (_NUMBER_BYTES * tile.columns)) * _SHORT_PIECES
    return vectors / sums.steps * tile.lanes * _NUMBER_BYTES / _BYTES_PER_CYCLE


def _tiles_of_groups(sums: ColumnSums, most: int, lanes: int, facts: ProcessorFacts) -> list[ColumnTile]:
    """Return tiles of a product with unpacked weights, since all lanes read the same data."""
    found = [
        Tile(y=1, x=row, vectors=vectors, lanes=lanes, order=Order.ROWS)
        for vectors in range(1, most + 1)
        if most % vectors == 0
        for row in range(1, sums.row + 1)
        if row * vectors <= _MOST_SUMS_IN_GROUPS * facts.registers
    ]
    fitting = [tile for tile in found if fits_registers(tile, facts)]
    fitting.sort(key=lambda tile: step_cycles(tile, sums.row, facts) / (tile.x * tile.vectors))
    return [ColumnTile(row=tile.x, vectors=tile.vectors, lanes=lanes) for tile in fitting]
