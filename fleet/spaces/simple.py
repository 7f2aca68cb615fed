"""Schedules for what is no product: element-wise programs, copies, pooling, sums and maxima. No knobs, one good choice.

Vectors run along the innermost axis of the result, cores share the outer ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleet.spaces.blocks import names_in
from fleet.spaces.facts import ProcessorFacts

if TYPE_CHECKING:
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.schedule import LoopRV, SBlockRV

_FEWEST_PARALLEL_STEPS = 16_384
"""Below that, waking the other cores (some microseconds) takes longer than the work."""

_MOST_UNROLLED = 16


def schedule_block(schedule: Schedule, block: SBlockRV, facts: ProcessorFacts) -> None:
    """Vectorize and share one block among the cores. Its loops must be untouched."""
    from tvm.tirx import IterVar

    loops = list(schedule.get_loops(block))
    kinds = [iterator.iter_type for iterator in schedule.get(block).iter_vars]
    if not loops or len(kinds) != len(loops) or not _are_fixed(schedule, loops):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != IterVar.DataPar]
    if not sums:
        _schedule_elementwise(schedule, spatial, facts)
    elif spatial and _reads_along(schedule.get(block)) and _width(_extent(schedule, spatial[-1]), facts):
        _schedule_columns(schedule, block, spatial, sums, facts)
    else:
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


def _schedule_columns(
    schedule: Schedule, block: SBlockRV, spatial: list[LoopRV], sums: list[LoopRV], facts: ProcessorFacts
) -> None:
    """Reduce along outer axes: each lane reduces a column of its own."""
    steps, is_short = _product(schedule, [*spatial, *sums]), _product(schedule, sums) <= _MOST_UNROLLED
    outside, lanes = schedule.split(spatial[-1], [None, _width(_extent(schedule, spatial[-1]), facts)])
    outer = [*spatial[:-1], outside]
    schedule.reorder(*outer, *sums, lanes)
    schedule.vectorize(lanes)
    if is_short:
        for loop in sums:
            schedule.unroll(loop)
    if steps >= _FEWEST_PARALLEL_STEPS:
        schedule.parallel(schedule.fuse(*outer))
    schedule.decompose_reduction(block, sums[0])


def _schedule_rows(
    schedule: Schedule, block: SBlockRV, spatial: list[LoopRV], sums: list[LoopRV], facts: ProcessorFacts
) -> None:
    """Reduce along the innermost axis."""
    if _product(schedule, [*spatial, *sums]) >= _FEWEST_PARALLEL_STEPS and spatial:
        schedule.parallel(schedule.fuse(*spatial))
    schedule.decompose_reduction(block, sums[0])


def _reads_along(block: SBlock) -> bool:
    """Tell whether the innermost axis of the result is that of something that the block reads."""
    from tvm.tirx import IterVar

    spatial = [it.var for it in block.iter_vars if it.iter_type == IterVar.DataPar]
    return any(names_in(region.region[-1].min) >= {spatial[-1].name} for region in block.reads if len(region.region))


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
