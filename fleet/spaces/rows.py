"""Schedules reductions along rows and programs based on them: softmax, norms, means, sums, maxima.

All blocks of a row run one after the other while the row is in the nearest cache, and cores share the rows. A reduction
keeps several partial results per lane, which hides the latency of its operation, and joins them at the end of the row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import Buffer, BufferRegion, IterVar, Var

from fleet.spaces.blocks import child_blocks, is_reduction, names_in
from fleet.spaces.columns import reads_along
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import (
    domain,
    extent,
    is_untouched,
    lanes_of,
    share,
    split_at_borders,
    split_by_kind,
    steps,
    vector_width,
)

_FEWEST_LANES = 4
"""Minimum lanes of a reduction whose length is no multiple of a register's: fewer do not pay for joining them."""

_MOST_UNROLLED = 16

_PARTIAL_VECTORS = (4, 8, 2, 1)
"""Vectors of partial results, the most promising number first: one addition may start per cycle, and takes about four.
"""

_LAST_WIDTHS = (4, 2)
"""Partial results before the last one. Lanes of a register that are joined one by one make a chain of additions, each
of which waits for the one before: a norm of rows of 96 numbers took half as long again (Zen 5, 16 lanes).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTile:
    """Partial results of a row's reduction that stay in registers."""

    partial_results: int
    """Maximum partial results: for a row with a length that it does not divide, the largest divisor that is a power
    of two.
    """


def row_tiles(schedule: Schedule, result: SBlockRV, facts: ProcessorFacts) -> list[RowTile]:
    """Return the tiles of a block that is computed row by row, the most promising first; none if there is no choice."""
    blocks = [schedule.get(block) for block in [*chain_to(schedule, result), result]]
    sums = [block for block in blocks if is_reduction(block) and not reads_along(block)]
    cut = [
        (_length(block), lanes_of(block, facts)) for block in sums if _is_cut(_length(block), lanes_of(block, facts))
    ]
    found: dict[tuple[int, ...], RowTile] = {}
    for vectors in _PARTIAL_VECTORS if cut else ():
        widths = tuple(vector_width(length, vectors * lanes) for length, lanes in cut)
        is_whole = any(width == length for width, (length, _) in zip(widths, cut, strict=True))
        if not (found and is_whole):  # a row that fits one partial result has nothing to add up
            found.setdefault(widths, RowTile(partial_results=max(widths)))
    return [*found.values()]


def chain_to(schedule: Schedule, result: SBlockRV) -> list[SBlockRV]:
    """Return the untouched blocks that a block depends on, in order, without itself.

    A block that is used elsewhere, too, is not among them.
    """
    wanted = {schedule.get(result).name_hint}
    found = []
    for block in reversed(child_blocks(schedule)):
        users = {schedule.get(user).name_hint for user in schedule.get_consumers(block)}
        if users and users <= wanted and is_untouched(schedule, block):
            wanted.add(schedule.get(block).name_hint)
            found.append(block)
    return found[::-1]


def schedule_rows(schedule: Schedule, result: SBlockRV, facts: ProcessorFacts, tile: RowTile | None = None) -> bool:
    """Compute a block, and all blocks that it depends on, row by row.

    Args:
        tile: one of `row_tiles`; None: the most promising one.

    Returns:
        False: these blocks have no rows in common, or would repeat work. The schedule may have been changed: work on
            a copy.

    Raises:
        ScheduleError: TVM cannot prove that the result stays the same.
    """
    chain = chain_to(schedule, result)
    row_axes = _row_axes(schedule, result, chain)
    if not any(is_reduction(schedule.get(block)) for block in [*chain, result]) or (chain and not row_axes):
        return False
    work = sum(domain(schedule.get(block)) for block in [*chain, result])
    ordered: list[SBlockRV] = []
    partial: list[SBlockRV] = []
    for block in [*chain, result]:
        if is_reduction(schedule.get(block)) and not reads_along(schedule.get(block)):
            partial += (found := _partial_results(schedule, block, facts, tile))
            ordered += found
        ordered.append(block)
    total = sum(domain(schedule.get(block)) for block in ordered)
    loops = schedule.get_loops(result)
    outer = [loops[axis] for axis in row_axes]
    inner = [loop for axis, loop in enumerate(loops) if axis not in row_axes]
    if outer:
        schedule.reorder(*outer, *inner)
        row = share(schedule, outer, work)
        for block in reversed(ordered[:-1]):
            schedule.compute_at(block, row, preserve_unit_loops=True)
    if sum(steps(schedule, schedule.get_loops(block)) for block in ordered) > total:
        return False
    partial_names = {schedule.get(block).name_hint for block in partial}
    sums = [
        _vectorize(
            schedule, block, facts, has_rows=bool(inner), is_partial=schedule.get(block).name_hint in partial_names
        )
        for block in ordered
    ]
    for block, first_sum in zip(ordered, sums, strict=True):
        if first_sum is not None:  # the last step: TVM cannot vectorize a loop around a decomposed reduction
            schedule.decompose_reduction(block, first_sum)
            if extent(schedule, first_sum) <= _MOST_UNROLLED:  # so that partial results stay in registers
                schedule.unroll(first_sum)
    return True


def _row_axes(schedule: Schedule, result: SBlockRV, chain: list[SBlockRV]) -> list[int]:
    """Return the result axes that index rows: those used unchanged by every per-row input."""
    own = schedule.get(result)
    regions = [region.region for region in _reads_of(own, _row_values(schedule, chain))]
    spatial, _ = split_by_kind(schedule, result)
    names = [iterator.var.name for iterator in own.iter_vars]
    if is_reduction(own):
        return [axis for axis in range(len(names)) if axis < len(spatial)]
    plain = [{index.min.name for index in region if isinstance(index.min, Var)} for region in regions]
    used = [{name for index in region for name in names_in(index.min)} for region in regions]
    if plain != used:  # a reshape lies between
        return []
    return [axis for axis, name in enumerate(names) if used and all(name in of_region for of_region in used)]


def _row_values(schedule: Schedule, chain: list[SBlockRV]) -> list[Buffer]:
    """Return the blocks with one value per row: reductions, and blocks computed from these without another axis."""
    found: list[Buffer] = []
    for own in map(schedule.get, chain):
        ranks = [len(region.region) for region in _reads_of(own, found)]
        if is_reduction(own) or len(own.iter_vars) in ranks:
            found.append(own.writes[0].source)
    return found


def _reads_of(block: SBlock, buffers: list[Buffer]) -> list[BufferRegion]:
    return [region for region in block.reads if any(region.source.same_as(buffer) for buffer in buffers)]


def _partial_results(
    schedule: Schedule, block: SBlockRV, facts: ProcessorFacts, tile: RowTile | None
) -> list[SBlockRV]:
    """Split a reduction into partial results, one per lane, and their sum; return the blocks before it, in order."""
    _, sums = split_by_kind(schedule, block)
    length, most = _length(schedule.get(block)), lanes_of(schedule.get(block), facts)
    if not _is_cut(length, most):
        return []
    several = vector_width(length, tile.partial_results if tile else _PARTIAL_VECTORS[0] * most)
    if len(sums) > 1:
        schedule.fuse(*sums)
    found = []
    for width in sorted({several, vector_width(length, most), *_LAST_WIDTHS}, reverse=True):
        _, lane = schedule.split(schedule.get_loops(block)[-1], [None, width])
        found.append(schedule.rfactor(lane, 0))
    return found


def _is_cut(length: int, most: int) -> bool:
    """Tell whether a row has a cut vector; it would need a condition, which compute_at forgets.

    Args:
        most: lanes of a register.
    """
    lanes = vector_width(length, most)
    return lanes >= _FEWEST_LANES and length > lanes


def _length(block: SBlock) -> int:
    """Return how many numbers one result is reduced from."""
    return math.prod(int(it.dom.extent) for it in block.iter_vars if it.iter_type != IterVar.DataPar)


def _vectorize(
    schedule: Schedule, block: SBlockRV, facts: ProcessorFacts, *, has_rows: bool, is_partial: bool
) -> LoopRV | None:
    """Vectorize a block's work for one row, under the loop over rows; return its outermost reduction loop."""
    own = schedule.get(block)
    most = lanes_of(own, facts)
    loops = list(schedule.get_loops(block))
    if not is_reduction(own):
        if has_rows:
            _vectorize_loop(schedule, loops[-1], most)
        return None
    if len(loops) <= len(own.iter_vars):  # the result: its other loops are the rows
        return loops[-1]
    spatial, sums = split_by_kind(schedule, block, 1)
    if is_partial:  # TVM has moved the lanes to the front
        all_lanes, *others = spatial
        vectors, lanes = schedule.split(all_lanes, [None, vector_width(extent(schedule, all_lanes), most)])
        schedule.reorder(*others, *sums, vectors, lanes)
        # in register-sized parts, as they are read later: LLVM is slow at splitting wider ones
        schedule.unroll(vectors)
        schedule.vectorize(lanes)
    elif reads_along(own):
        schedule.reorder(*sums, *spatial)
        _vectorize_loop(schedule, spatial[-1], most)
    return sums[0]


def _vectorize_loop(schedule: Schedule, loop: LoopRV, most: int) -> None:
    width = vector_width(extent(schedule, loop), most)
    if 2 * width < most < extent(schedule, loop):
        width = most  # the last vector is cut
    if width > 1:
        vectors, lanes = schedule.split(loop, [None, width])
        schedule.vectorize(lanes)
        split_at_borders(schedule, vectors)
