"""The design space of attention: its two products and the softmax between them, for a few rows of queries at a time.

The scores of these rows stay in the nearest cache. Both products have tiles as in `fleet.spaces.product`: of the
scores, `rows` times some vectors along the keys; of the result, `rows` times some vectors along a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from fleet.graph.attention_program import (
    ATTRIBUTE,
    INVERSE,
    KEYS,
    LARGEST,
    MASKED,
    MIXED,
    POWERS,
    RESULT,
    SCORES,
    TOTAL,
)
from fleet.spaces.design_space import Space
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import extent, share, split_at_borders, split_by_kind, vector_width
from fleet.spaces.tiles import divisors

_MOST_ROWS = 16
_MOST_CHOICES = 16
_MOST_UNROLLED = 16
_REGISTERS_FOR_SUMS = 0.75
"""Largest share of the registers for a tile's sums: with more, LLVM spills, since the loop keeps other values too."""

_PRODUCT_LOOPS = 5
"""Batch, head, row, column and sum."""

_TAIL = 1.2
"""Extra cost of the remaining rows over a block of that size: their code is another, and cold."""

_BEGIN_CYCLES = 200
"""Overhead of a block of rows: memory for its scores, and the ends of its loops."""

_FEW_ROUNDS = 1.15

_BLOCK = 16
"""Side of the squares in which keys are turned."""


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """One choice of all knobs."""

    rows: int
    """Queries with scores that are computed together."""

    score_vectors: int
    value_vectors: int
    """Vectors that a tile of either product has in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    batches: int
    heads: int
    shared_heads: int

    tokens: int
    width: int
    seen: int
    padded: int
    value_width: int
    score_lanes: int
    value_lanes: int


def attention_space(mod: IRModule, facts: ProcessorFacts) -> Space | None:
    """Return the tiles of an attention made by `fleet.graph.attention_program`; None for any other function."""
    attributes = mod["main"].attrs
    if not attributes or ATTRIBUTE not in attributes:
        return None
    sizes = _sizes(Schedule(mod), facts)
    choices = attention_tiles(sizes, facts)[:_MOST_CHOICES]

    def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
        for place in places:
            schedule = Schedule(mod)
            _apply(schedule, sizes, choices[place], facts)
            yield schedule

    return Space(rule="attention", choices=tuple(choices), schedules_at=schedules_at)


def attention_tiles(sizes: _Sizes, facts: ProcessorFacts) -> list[AttentionTile]:
    """Return all sensible tiles, the most promising first."""
    score_vectors = divisors(sizes.padded // sizes.score_lanes, facts.registers)
    value_vectors = divisors(sizes.value_width // sizes.value_lanes, facts.registers)
    found = [
        AttentionTile(rows, of_scores, of_values)
        for rows in range(1, min(sizes.tokens, _MOST_ROWS) + 1)
        for of_scores in score_vectors
        for of_values in value_vectors
        if _fits(rows, of_scores, facts) and _fits(rows, of_values, facts)
    ]
    return sorted(found, key=lambda tile: _cycles(tile, sizes, facts))


def _fits(rows: int, vectors: int, facts: ProcessorFacts) -> bool:
    sums = rows * vectors
    scalars = 0 if facts.has_scalar_operands and vectors == 1 else 1
    return sums + vectors + scalars <= facts.registers and sums <= _REGISTERS_FOR_SUMS * facts.registers


def _cycles(tile: AttentionTile, sizes: _Sizes, facts: ProcessorFacts) -> float:
    """Estimate the cycles that both products take for all queries of a head."""
    full, left = divmod(sizes.tokens, tile.rows)
    scores, values = sizes.padded // sizes.score_lanes, sizes.value_width // sizes.value_lanes

    def block(rows: int) -> float:
        if not rows:
            return 0.0
        of_scores = _step(rows, tile.score_vectors, facts) * sizes.width + 2 * rows * tile.score_vectors
        of_values = _step(rows, tile.value_vectors, facts) * sizes.seen + 2 * rows * tile.value_vectors
        return of_scores * scores / tile.score_vectors + of_values * values / tile.value_vectors + _BEGIN_CYCLES

    per_head = full * block(tile.rows) + _TAIL * block(left)
    if _shares_heads(sizes, facts.cores):
        return per_head
    return per_head * _rounds(sizes.batches * sizes.heads * (full if left == 0 else 1), facts.cores)


def _shares_heads(sizes: _Sizes, cores: int) -> bool:
    """Tell whether there are enough key heads for all cores, so that no core waits for another's keys."""
    return _rounds(sizes.batches * sizes.shared_heads, cores) < _FEW_ROUNDS


def _rounds(tasks: int, cores: int) -> float:
    """Return the ratio of the time of this many tasks to that of perfectly divisible work."""
    return math.ceil(tasks / cores) * cores / tasks


def _step(rows: int, vectors: int, facts: ProcessorFacts) -> float:
    loads = rows + 2 * vectors  # keys and values come from the second-level cache, a row's number from the first
    return max(rows * vectors / facts.fmas_per_cycle, loads / facts.loads_per_cycle, facts.latency) + 0.1 * loads


def _sizes(schedule: Schedule, facts: ProcessorFacts) -> _Sizes:
    scores = [int(it.dom.extent) for it in schedule.get(schedule.get_sblock(SCORES)).iter_vars]
    mixed = [int(it.dom.extent) for it in schedule.get(schedule.get_sblock(MIXED)).iter_vars]
    keys = [int(it.dom.extent) for it in schedule.get(schedule.get_sblock(KEYS)).iter_vars]
    return _Sizes(
        batches=scores[0],
        heads=scores[1],
        shared_heads=keys[1],
        tokens=scores[2],
        width=scores[4],
        seen=mixed[4],
        padded=scores[3],
        value_width=mixed[3],
        score_lanes=vector_width(scores[3], facts.lanes),
        value_lanes=vector_width(mixed[3], facts.lanes),
    )


def _apply(schedule: Schedule, sizes: _Sizes, tile: AttentionTile, facts: ProcessorFacts) -> None:
    largest, total = (_partial_results(schedule, name, sizes.score_lanes) for name in (LARGEST, TOTAL))
    head, rows, columns = _tile_result(schedule, sizes, tile, facts)
    schedule.compute_at(schedule.get_sblock(MIXED), columns, preserve_unit_loops=True)
    stages = [schedule.get_sblock(name) for name in (MASKED, LARGEST, POWERS, TOTAL, INVERSE)]
    in_order = [stages[0], *largest, stages[1], stages[2], *total, stages[3], stages[4]]
    for block in reversed(in_order):
        schedule.compute_at(block, rows, preserve_unit_loops=True)
    depth = len(schedule.get_loops(stages[0])) - 4
    around = _tile_scores(schedule, stages[0], sizes, tile, depth)
    schedule.compute_at(schedule.get_sblock(SCORES), around, preserve_unit_loops=True)
    _turn_keys(schedule, sizes, head)
    _vectorize(schedule, schedule.get_loops(stages[2])[-1], sizes.score_lanes)
    begins = [
        _tile_product(schedule, schedule.get_sblock(name), lanes)
        for name, lanes in ((SCORES, sizes.score_lanes), (MIXED, sizes.value_lanes))
    ]
    sums = [(block, _vectorize_partial(schedule, block, depth)) for block in (*largest, *total)]
    sums += [(block, _finish_partial(schedule, block, depth)) for block in (stages[1], stages[3])]
    # The last step: TVM cannot vectorize a loop around a decomposed reduction.
    for block, first, count in begins:
        begin = schedule.decompose_reduction(block, first)
        for loop in schedule.get_loops(begin)[-count:-1]:
            schedule.unroll(loop)
    for block, first in sums:
        schedule.decompose_reduction(block, first)
        if extent(schedule, first) <= _MOST_UNROLLED:
            schedule.unroll(first)


def _turn_keys(schedule: Schedule, sizes: _Sizes, head: LoopRV | None) -> None:
    """Transpose the keys in squares of a few vectors; the last square of a padded sequence has its own conditions.

    Args:
        head: the loop over heads of keys that turns its own; None: all are turned before.
    """
    block = schedule.get_sblock(KEYS)
    if head is not None:
        schedule.compute_at(block, head, preserve_unit_loops=True)
    *around, width, seen = schedule.get_loops(block)
    work = sizes.batches * sizes.shared_heads * sizes.width * sizes.padded
    outer, inner = schedule.split(width, [None, vector_width(sizes.width, _BLOCK)])
    squares, lanes = schedule.split(seen, [None, sizes.score_lanes])
    schedule.reorder(outer, squares, inner, lanes)
    schedule.vectorize(lanes)
    if sizes.padded > sizes.seen:
        split_at_borders(schedule, squares)
    if head is None:
        share(schedule, [*around, outer], work)


def _partial_results(schedule: Schedule, name: str, lanes: int) -> list[SBlockRV]:
    """Split a reduction along the keys into partial results, one per vector lane, and their sum."""
    block = schedule.get_sblock(name)
    loop = schedule.get_loops(block)[-1]
    if extent(schedule, loop) == lanes:
        return []
    _, lane = schedule.split(loop, [None, lanes])
    return [schedule.rfactor(lane, 0)]


def _tile_result(
    schedule: Schedule, sizes: _Sizes, tile: AttentionTile, facts: ProcessorFacts
) -> tuple[LoopRV | None, LoopRV, LoopRV]:
    """Split the result into tiles; return the loops over heads of keys, blocks of rows, and tiles within these.

    The first is None where cores share more than heads.
    """
    batch, tokens, features = schedule.get_loops(schedule.get_sblock(RESULT))
    shared, each, width = schedule.split(features, [sizes.shared_heads, None, sizes.value_width])
    blocks, rows = schedule.split(tokens, [None, tile.rows])
    columns, vectors, lanes = schedule.split(width, [None, tile.value_vectors, sizes.value_lanes])
    schedule.reorder(batch, shared, each, blocks, columns, rows, vectors, lanes)
    schedule.vectorize(lanes)
    schedule.unroll(vectors)
    schedule.unroll(rows)
    is_even = sizes.tokens % tile.rows == 0
    if not is_even:
        split_at_borders(schedule, blocks)
    work = sizes.batches * sizes.heads * sizes.tokens * sizes.padded
    if _shares_heads(sizes, facts.cores):
        head = share(schedule, [batch, shared], work)
        return head, blocks, columns
    if not is_even:
        share(schedule, [batch, shared, each], work)
        return None, blocks, columns
    return None, share(schedule, [batch, shared, each, blocks], work), columns


def _tile_scores(schedule: Schedule, block: SBlockRV, sizes: _Sizes, tile: AttentionTile, depth: int) -> LoopRV:
    """Split the scores of a block of rows into tiles; return the loop over these."""
    *_, rows, keys = schedule.get_loops(block)[depth:]
    tiles, vectors, lanes = schedule.split(keys, [None, tile.score_vectors, sizes.score_lanes])
    schedule.reorder(tiles, rows, vectors, lanes)
    schedule.vectorize(lanes)
    schedule.unroll(vectors)
    schedule.unroll(rows)
    return tiles


def _tile_product(schedule: Schedule, block: SBlockRV, lanes: int) -> tuple[SBlockRV, LoopRV, int]:
    """Move the sum outside of the tile; return the block, the sum's loop, and the number of loops of the tile."""
    spatial, (terms,) = split_by_kind(schedule, block, len(schedule.get_loops(block)) - _PRODUCT_LOOPS)
    vectors, lane = schedule.split(spatial[-1], [None, lanes])
    schedule.reorder(terms, *spatial[:-1], vectors, lane)
    schedule.vectorize(lane)
    for loop in (*spatial[:-1], vectors):
        schedule.unroll(loop)
    return block, terms, len(spatial) + 1


def _vectorize_partial(schedule: Schedule, block: SBlockRV, depth: int) -> LoopRV:
    """Reduce each row by lanes; return the loop over vectors."""
    (lanes, *rows), (vectors,) = split_by_kind(schedule, block, depth)
    schedule.reorder(*rows, vectors, lanes)
    schedule.vectorize(lanes)
    return vectors


def _finish_partial(schedule: Schedule, block: SBlockRV, depth: int) -> LoopRV:
    """Join the lanes of each row; return the loop over them."""
    rows, (lanes,) = split_by_kind(schedule, block, depth)
    schedule.reorder(*rows, lanes)
    return lanes


def _vectorize(schedule: Schedule, loop: LoopRV, lanes: int) -> None:
    _, lane = schedule.split(loop, [None, lanes])
    schedule.vectorize(lane)
