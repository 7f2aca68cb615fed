"""Schedules for blocks other than tiled products: one good choice for each kind, and tiles for reductions.

Blocks that make rows (softmax, norms) are taken together, from their result backwards; the rest is taken one by one.
Every attempt works on a copy, so blocks that cannot be scheduled stay correct loop nests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from tvm.ir import IRModule
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from fleet.spaces.blocks import child_blocks, is_reduction
from fleet.spaces.column_tiles import ColumnTile
from fleet.spaces.columns import reads_along, schedule_columns, tiles_of
from fleet.spaces.design_space import Space
from fleet.spaces.elementwise import schedule_elementwise
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.grouped import schedule_padded_groups
from fleet.spaces.inlining import inline_all
from fleet.spaces.loops import add_missing_loops, domain, enough, is_untouched, share, split_by_kind, steps
from fleet.spaces.padding import padded_columns
from fleet.spaces.rows import RowTile, chain_to, row_tiles, schedule_rows

_MOST_TILES = 12
"""Maximum tiles of a reduction by columns: further ones are hardly ever the best."""

ReductionTile = ColumnTile | RowTile

Kind = Callable[["Schedule", "SBlockRV", ProcessorFacts], bool]
"""Schedules a block, perhaps with others; False: it is not of this kind. The schedule may be half changed then."""


def fallback_space(mod: IRModule, facts: ProcessorFacts) -> Space:
    """Return the space of any other function: the tiles of its main reduction, or its only schedule."""
    schedule = Schedule(mod)
    inline_all(schedule, frozenset(), kept=padded_columns(schedule))
    add_missing_loops(schedule)
    main, tiles = _main_reduction(schedule.copy(), facts)

    def schedules_at(places: Sequence[int]) -> Iterator[Schedule]:
        for chosen in [{main: tiles[place]} for place in places] if tiles else [{}]:
            yield schedule_rest(schedule.copy(), facts, chosen)  # even looking at its blocks adds a step to a trace

    return Space(rule="reduction" if tiles else "elementwise", choices=tuple(tiles), schedules_at=schedules_at)


def schedule_rest(
    schedule: Schedule, facts: ProcessorFacts, tiles: Mapping[str, ReductionTile] | None = None
) -> Schedule:
    """Schedule all blocks with untouched loops; return the resulting schedule.

    Args:
        tiles: of reductions, by their blocks; others have the most promising ones.
    """
    add_missing_loops(schedule)
    chosen = tiles or {}
    rows = {name: tile for name, tile in chosen.items() if isinstance(tile, RowTile)}
    columns = {name: tile for name, tile in chosen.items() if isinstance(tile, ColumnTile)}
    names = [schedule.get(block).name_hint for block in child_blocks(schedule)]
    for name in reversed(names):
        if _makes_rows(schedule, name):
            by_rows = functools.partial(schedule_rows, tile=rows.get(name))
            schedule = _first_that_fits(schedule, name, facts, [by_rows])
    for name in [schedule.get(block).name_hint for block in child_blocks(schedule)]:
        by_columns = [
            functools.partial(kind, tile=columns.get(name)) for kind in (schedule_padded_groups, schedule_columns)
        ]
        schedule = _first_that_fits(schedule, name, facts, [*by_columns, _schedule_reduction, schedule_elementwise])
    return schedule


def unscheduled(schedule: Schedule) -> tuple[str, ...]:
    """Return the names of blocks that are still loop nests as they were made, in order."""
    return tuple(schedule.get(block).name_hint for block in child_blocks(schedule) if is_untouched(schedule, block))


def _main_reduction(schedule: Schedule, facts: ProcessorFacts) -> tuple[str, Sequence[ReductionTile]]:
    """Return the block that a function's tile applies to, and its tiles, the most promising first; none without a
    choice.

    It is the last that makes rows, else the largest of all, if that is a reduction by columns.
    """
    blocks = child_blocks(schedule)
    names = [schedule.get(block).name_hint for block in blocks]
    rows = next((name for name in reversed(names) if _makes_rows(schedule, name)), None)
    if rows is not None:
        is_scheduled = _first_that_fits(schedule, rows, facts, [schedule_rows]) is not schedule
        return rows, row_tiles(schedule, schedule.get_sblock(rows), facts) if is_scheduled else []
    main = max(blocks, key=lambda block: domain(schedule.get(block)))
    return schedule.get(main).name_hint, tiles_of(schedule, main, facts)[:_MOST_TILES]


def _first_that_fits(schedule: Schedule, name: str, facts: ProcessorFacts, kinds: list[Kind]) -> Schedule:
    """Return a schedule with a block scheduled by the first matching kind; unchanged if none matches."""
    if not _has_block(schedule, name):
        return schedule
    for schedule_as in kinds:
        trial = schedule.copy()
        try:
            block = trial.get_sblock(name)
            if is_untouched(trial, block) and schedule_as(trial, block, facts):
                return trial
        except ScheduleError:
            continue
    return schedule


def _has_block(schedule: Schedule, name: str) -> bool:
    """Tell whether a block is still there: it may have been inlined or moved. A failing lookup by name takes 2 ms."""
    return any(schedule.get(block).name_hint == name for block in child_blocks(schedule))


def _makes_rows(schedule: Schedule, name: str) -> bool:
    """Tell whether a block is, or is computed from, a reduction along rows."""
    if not _has_block(schedule, name):
        return False
    block = schedule.get_sblock(name)
    together = [schedule.get(other) for other in [*chain_to(schedule, block), block]]
    return any(is_reduction(other) and not reads_along(other) for other in together)


def _schedule_reduction(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> bool:
    """Parallelize a reduction of any other kind over the cores."""
    spatial, sums = split_by_kind(schedule, block)
    if not sums:
        return False
    if spatial:
        share(schedule, enough(schedule, spatial, facts), steps(schedule, [*spatial, *sums]))
    schedule.decompose_reduction(block, sums[0])
    return True
