"""Schedules Winograd convolutions (`fleet.graph.winograd`): all stages of a few tiles while they are in the cache.

Either a core takes a block of the result's tiles through all stages (Order.ROWS), or all data is transformed first and
a core takes some columns of the weights through the rest (Order.COLUMNS): for layers of few pixels, with weights that
are read once and fill the caches. The product within is tiled as any other (`fleet.spaces.product`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from fleet.graph.winograd import ATTRIBUTE, WinogradStage
from fleet.spaces.blocks import Product, child_blocks, find_product, has_constant_weights, only_follower
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.fallback_rules import schedule_rest
from fleet.spaces.inlining import inline_all
from fleet.spaces.loops import split_at_borders
from fleet.spaces.product import clear_before, pack, tile_product
from fleet.spaces.tiles import Order, Tile, step_cycles, tiles

_NEAR, _FAR = 90, 32
"""Bytes that a cycle brings from a core's own second cache, and from farther away, beside its arithmetic."""

_SCATTERED = 8
"""The same for short runs from farther away that the prefetcher does not predict."""

_SET, _LINE = 256, 16
"""float32 numbers."""

_SHARE_OF_CACHE = 0.75
"""Share of a core's own cache for a block's tiles, before and after the product; weights need the rest."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One choice of all knobs."""

    tile: Tile
    """Tile of the product. Its rows are the convolution's tiles."""

    rows: int
    columns: int
    """Tiles of a block in both directions."""


def winograd_space(mod: IRModule, facts: ProcessorFacts) -> Space | None:
    """Return the cuts of a Winograd convolution; None for any other function."""
    schedule = Schedule(mod)
    stages = winograd_stages(schedule)
    block = schedule.get_sblock(stages[WinogradStage.PRODUCT]) if stages else None
    product = find_product(schedule.get(block)) if block else None
    if block is None or product is None:
        return None
    packs = has_constant_weights(schedule, block, product, mod)
    choices = cuts(product, facts)

    def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
        wanted = [choices[place] for place in places]
        for found in winograd_schedules(Schedule(mod), stages, product, wanted, facts, packs=packs):
            yield schedule_rest(found, facts)

    return Space(rule="winograd", choices=tuple(choices), schedules_at=schedules_at)


def winograd_stages(schedule: Schedule) -> dict[WinogradStage, str]:
    """Return the names of the blocks of a Winograd convolution; nothing if there is none, or a stage is missing."""
    found: dict[WinogradStage, str] = {}
    for block in map(schedule.get, child_blocks(schedule)):
        if ATTRIBUTE in block.annotations:
            found[WinogradStage(str(block.annotations[ATTRIBUTE]))] = str(block.name_hint)
    return found if len(found) == len(WinogradStage) else {}


def cuts(product: Product, facts: ProcessorFacts) -> list[Cut]:
    """Return all sensible cuts, the most promising first."""
    *_, rows, columns = (axis.extent for axis in product.axes[:-2])
    found = [
        Cut(tile, *block)
        for tile in tiles(product, facts)
        if not tile.depth and not tile.last  # a block is a part of the rows already; its vectors are whole
        for block in (_blocks(product, tile, facts) if tile.order is Order.ROWS else [(rows, columns)])
    ]
    return sorted(found, key=lambda cut: _cycles(cut, product, facts))


def winograd_schedules(
    schedule: Schedule,
    names: Mapping[WinogradStage, str],
    product: Product,
    wanted: Iterable[Cut],
    facts: ProcessorFacts,
    *,
    packs: bool,
) -> Iterator[Schedule]:
    """Yield a convolution, and the blocks computed from its results, with each of some cuts.

    Args:
        schedule: nothing has been done to it yet.
        names: of its blocks, by stage.
        product: the stage of products.
        packs: reorder the weights, which must be constant, for the tile.
    """
    inline_all(schedule, frozenset(), kept=frozenset(names.values()))
    begun: dict[int, tuple[Schedule, _Blocks]] = {}
    divided: dict[tuple[int, int, int], tuple[Schedule, _Blocks, _Tiles]] = {}
    # Common steps of cuts are done once, and copied: they take most of a schedule's time.
    for cut in wanted:
        packed = cut.tile.columns if packs else 0
        if packed not in begun:
            copy = schedule.copy()
            begun[packed] = copy, _begin(copy, names, product, cut.tile if packs else None)
        key = packed, cut.rows, cut.columns
        if key not in divided:
            common, blocks = begun[packed]
            copy = common.copy()
            divided[key] = copy, blocks, _divide(copy, blocks.result, cut, blocks.outputs)
        common, blocks, tiles_of_result = divided[key]
        finished = common.copy()
        _finish(finished, blocks, tiles_of_result, product, cut, facts)
        yield finished


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocks:
    """The blocks of a convolution."""

    columns: SBlockRV
    data: SBlockRV
    product: SBlockRV
    parts: SBlockRV
    result: SBlockRV
    """Block of the result, with the blocks computed from it."""

    outputs: int
    """Rows, and columns, of the result that a tile has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tiles:
    """The loops of a result that is divided into tiles."""

    n: LoopRV
    blocks_y: LoopRV
    tile_y: LoopRV
    i: LoopRV
    blocks_x: LoopRV
    tile_x: LoopRV
    j: LoopRV
    channels: LoopRV
    is_whole: bool
    """True if tiles end where its rows end."""


def _begin(schedule: Schedule, names: Mapping[WinogradStage, str], product: Product, tile: Tile | None) -> _Blocks:
    """Pack the weights if this is for a tile, and fuse the blocks that write the results."""
    columns, data, block, parts, result = (schedule.get_sblock(names[stage]) for stage in WinogradStage)
    if tile is not None:
        pack(schedule, block, product, tile)
    result = _joined(schedule, result)
    outputs = int(schedule.get(parts).iter_vars[2].dom.extent)
    return _Blocks(columns=columns, data=data, product=block, parts=parts, result=result, outputs=outputs)


def _finish(
    schedule: Schedule, blocks: _Blocks, tiles_of_result: _Tiles, product: Product, cut: Cut, facts: ProcessorFacts
) -> None:
    """Apply the rest of a cut."""
    around, vectors = _cut_result(schedule, tiles_of_result, cut, facts)
    _transform_back(schedule, blocks.parts, vectors)
    sums, depth = _multiply(schedule, blocks.product, product, cut, around)
    _transform(schedule, blocks.data, blocks.columns, facts, around if cut.tile.order is Order.ROWS else None)
    schedule.parallel(around)
    clear_before(schedule, blocks.product, sums, depth)


def _blocks(product: Product, tile: Tile, facts: ProcessorFacts) -> list[tuple[int, int]]:
    """Return the block sizes, in tiles, that are multiples of the product's tile and fit the cache."""
    size, batch, rows, columns = (product.axes[axis].extent for axis in (0, 2, 3, 4))
    channels = product.axes[-1].extent + product.axes[-2].extent
    within = [
        (row, column)
        for row in range(tile.y, rows + 1, tile.y)
        for column in range(min(tile.x, columns), columns + 1)
        if rows % row == 0 and columns % column == 0 and (batch, row, column) != (1, rows, columns)
    ]
    fitting = [
        block
        for block in within
        if size**2 * math.prod(block) * channels * 4 <= _SHARE_OF_CACHE * facts.l2_bytes
        and batch * (rows // block[0]) * (columns // block[1]) >= facts.cores
    ]
    # Wide blocks read long runs of the data's rows.
    return sorted(fitting, key=lambda block: (-block[1], -block[0]))[:2] or within[:1]


def _cycles(cut: Cut, product: Product, facts: ProcessorFacts) -> float:
    """Estimate the cycles per multiply-add of a vector. Fitted to Zen 5; only the order counts."""
    tile, sums = cut.tile, cut.tile.y * cut.tile.x * cut.tile.vectors
    size, _, batch, rows, columns, filters, channels = (axis.extent for axis in product.axes)
    vector_bytes = 4 * tile.lanes
    is_by_rows = tile.order is Order.ROWS
    together = cut.rows * cut.columns * (1 if is_by_rows else batch)
    block_bytes = 4 * size**2 * together * (channels + (filters if is_by_rows else tile.columns))
    kept = min(1.0, facts.l2_bytes / block_bytes)
    cycles_per_byte = kept / _NEAR + (1 - kept) / _SCATTERED
    step = step_cycles(tile, cut.columns, facts)
    begin = (2 * sums * (1 + vector_bytes * cycles_per_byte) + 8) / channels
    # The block's first tile loads a panel of weights into the first-level cache, or the second.
    passes = cut.rows // tile.y * math.ceil(cut.columns / tile.x) * (1 if is_by_rows else batch)
    again = 0.0 if 4 * channels * tile.columns <= facts.l1_bytes // 2 else (passes - 1) / _NEAR
    first = 1 / (_NEAR if product.weights_bytes <= facts.l2_bytes // 2 else _FAR)
    weights = tile.vectors * vector_bytes * (first + again) / passes
    data = 4 * tile.y * tile.x * cycles_per_byte
    tasks = batch * (rows // cut.rows) * (columns // cut.columns) if is_by_rows else filters // tile.columns
    rounds = math.ceil(tasks / facts.cores) * facts.cores / tasks
    narrow = 1 / cut.columns  # neighbouring blocks read, and transform, the same borders
    return rounds * (step + begin + weights + data) * (1 + 0.02 * (tile.unroll > 1) + narrow) / sums


def _joined(schedule: Schedule, result: SBlockRV) -> SBlockRV:
    """Return the block that writes the results: the element-wise one after the convolution, if any."""
    follower = only_follower(schedule, result)
    if follower is None:
        return result
    try:
        schedule.compute_inline(result)
    except ScheduleError:  # the block is an output, too
        return result
    return follower


def _divide(schedule: Schedule, result: SBlockRV, cut: Cut, outputs: int) -> _Tiles:
    """Split the rows and columns of the result into blocks, tiles, and elements of a tile."""
    n, y, x, channels = schedule.get_loops(result)
    width = int(schedule.get(x).extent)
    blocks_y, tile_y, i = schedule.split(y, [None, cut.rows, outputs])
    blocks_x, tile_x, j = schedule.split(x, [None, cut.columns, outputs])
    return _Tiles(
        n=n,
        blocks_y=blocks_y,
        tile_y=tile_y,
        i=i,
        blocks_x=blocks_x,
        tile_x=tile_x,
        j=j,
        channels=channels,
        is_whole=width % outputs == 0,
    )


def _cut_result(schedule: Schedule, loops: _Tiles, cut: Cut, facts: ProcessorFacts) -> tuple[LoopRV, LoopRV]:
    """Make a tile innermost; return the parallel loop, and the loop around vectors."""
    if cut.tile.order is Order.ROWS:
        vectors, lanes = schedule.split(loops.channels, [None, facts.lanes])
        outer = [loops.n, loops.blocks_y, loops.blocks_x]
        inner = [loops.tile_y, loops.tile_x, vectors]
    else:
        blocks, vectors, lanes = schedule.split(loops.channels, [None, cut.tile.columns // facts.lanes, facts.lanes])
        outer = [blocks]
        inner = [loops.n, loops.blocks_y, loops.blocks_x, loops.tile_y, loops.tile_x, vectors]
    schedule.reorder(*outer, *inner, loops.i, loops.j, lanes)
    around = schedule.fuse(*outer)
    if not loops.is_whole:
        split_at_borders(schedule, loops.tile_x)
    schedule.vectorize(lanes)
    for loop in (loops.i, loops.j):
        schedule.unroll(loop)
    return around, vectors


def _multiply(schedule: Schedule, block: SBlockRV, product: Product, cut: Cut, around: LoopRV) -> tuple[LoopRV, int]:
    """Multiply a block's tiles with the weights, one position within the tiles after the other.

    Returns:
        The outermost loop of the sums, and how many loops are around the tile.
    """
    tile = cut.tile
    written = schedule.cache_write(block, 0, "global")
    schedule.compute_at(written, around, preserve_unit_loops=True)
    _spread(schedule, written)
    p, q, n, rows, columns, filters = schedule.get_loops(written)[1:]
    outer_rows, y = schedule.split(rows, [None, tile.y])
    outer_columns, x = schedule.split(columns, [None, tile.x])
    panels, vectors, lanes = schedule.split(filters, [None, tile.vectors, tile.lanes])
    # A panel of weights stays in the first-level cache while the block's tiles pass.
    schedule.reorder(p, q, panels, n, outer_rows, outer_columns, y, x, vectors, lanes)
    schedule.compute_at(block, outer_columns, preserve_unit_loops=True)
    schedule.vectorize(lanes)
    for loop in (y, x, vectors):
        schedule.unroll(loop)
    if cut.columns % tile.x:
        split_at_borders(schedule, outer_columns)
    depth = len(schedule.get_loops(block)) - len(product.axes)
    return tile_product(schedule, block, product, tile, depth), depth


def _transform_back(schedule: Schedule, parts: SBlockRV, vectors: LoopRV) -> None:
    """Apply the inverse transform to the columns of a tile's products, in the loop over its rows."""
    schedule.compute_at(parts, vectors, preserve_unit_loops=True)
    n, row, y, q, column, lanes = list(schedule.get_loops(parts))[-6:]
    schedule.reorder(n, row, column, q, y, lanes)
    schedule.vectorize(lanes)
    for loop in (q, y):
        schedule.unroll(loop)


def _spread(schedule: Schedule, block: SBlockRV) -> None:
    """Pad the distance between a tile's positions: distances of powers of two share cache sets."""
    schedule.storage_align(block, 0, axis=1, factor=_SET, offset=_LINE)


def _transform(
    schedule: Schedule, data: SBlockRV, columns: SBlockRV, facts: ProcessorFacts, around: LoopRV | None
) -> None:
    """Transform the data: next to its products, or all of it first, in parallel."""
    if around is not None:
        schedule.compute_at(data, around, preserve_unit_loops=True)
    _spread(schedule, data)
    p, q, n, row, column, channels = list(schedule.get_loops(data))[-6:]
    vectors, lanes = schedule.split(channels, [None, facts.lanes])
    schedule.reorder(n, row, column, vectors, p, q, lanes)
    schedule.vectorize(lanes)
    for loop in (p, q):
        schedule.unroll(loop)
    schedule.compute_at(columns, row, preserve_unit_loops=True)
    *_, p, x, channels = schedule.get_loops(columns)
    vectors, lanes = schedule.split(channels, [None, facts.lanes])
    schedule.reorder(x, vectors, p, lanes)
    schedule.vectorize(lanes)
    schedule.unroll(p)
    if around is None:
        schedule.parallel(schedule.fuse(n, row))
