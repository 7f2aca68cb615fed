"""Schedules for what is no product: element-wise programs, copies, pooling, sums and maxima. No knobs, one good choice.

Vectors run along the innermost axis of the result, cores share the outer ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleet.spaces.blocks import child_blocks
from fleet.spaces.columns import reads_along, schedule_columns
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import is_untouched, split_by_kind

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV

_FEWEST_PARALLEL_STEPS = 16_384
"""Below that, waking the other cores (some microseconds) takes longer than the work."""


def schedule_rest(schedule: Schedule, facts: ProcessorFacts) -> Schedule:
    """Schedule all blocks whose loops nobody has touched; return the schedule that has them.

    A block that cannot be scheduled stays a loop nest.
    """
    from tvm.s_tir.schedule import ScheduleError

    for name in [schedule.get(block).name_hint for block in child_blocks(schedule)]:
        trial = schedule.copy()
        try:
            block = trial.get_sblock(name)
            if is_untouched(trial, block):
                _schedule_block(trial, block, facts)
        except ScheduleError:
            continue
        schedule = trial
    return schedule


def _schedule_block(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> None:
    spatial, sums = split_by_kind(schedule, block)
    if not sums:
        _schedule_elementwise(schedule, spatial, facts)
        return
    if reads_along(schedule.get(block)) and schedule_columns(schedule, block, facts):
        return
    _schedule_rows(schedule, block, spatial, sums, facts)


def _schedule_elementwise(schedule: Schedule, loops: list[LoopRV], facts: ProcessorFacts) -> None:
    steps = _product(schedule, loops)
    width = _width(_extent(schedule, loops[-1]), facts)
    outer = loops[:-1]
    if width:
        outside, inside = schedule.split(loops[-1], [None, width])
        schedule.vectorize(inside)
        outer = [*outer, outside]
    elif not outer:
        outer = loops
    if steps >= _FEWEST_PARALLEL_STEPS and outer:
        schedule.parallel(schedule.fuse(*outer))


def _schedule_rows(
    schedule: Schedule, block: SBlockRV, spatial: list[LoopRV], sums: list[LoopRV], facts: ProcessorFacts
) -> None:
    """Reduce along the innermost axis."""
    if _product(schedule, [*spatial, *sums]) >= _FEWEST_PARALLEL_STEPS and spatial:
        schedule.parallel(schedule.fuse(*spatial))
    schedule.decompose_reduction(block, sums[0])


def _width(extent: int, facts: ProcessorFacts) -> int:
    """Return the widest vector that divides an axis; 0 if that is a scalar."""
    width = facts.lanes
    while width > 1 and extent % width:
        width //= 2
    return width if width > 1 else 0


def _are_fixed(schedule: Schedule, loops: list[LoopRV]) -> bool:
    from tvm.tirx import IntImm

    return all(isinstance(schedule.get(loop).extent, IntImm) for loop in loops)


def _extent(schedule: Schedule, loop: LoopRV) -> int:
    return int(schedule.get(loop).extent)


def _product(schedule: Schedule, loops: list[LoopRV]) -> int:
    return math.prod(_extent(schedule, loop) for loop in loops)
