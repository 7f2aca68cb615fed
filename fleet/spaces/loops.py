"""Queries and transforms of loops for all kinds of schedules: extents, vector widths, and parallelization.

TVM splits a loop at the borders of its conditions (padding, parts of a concatenation, the rest of a division) if it is
marked so: the inner part has no conditions, as vectors need.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import DataType
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import ForKind, IterVar, SeqStmt

from fleet.spaces.facts import ProcessorFacts

SPLIT_HINT = "pragma_loop_partition_hint"
"""TVM's annotation of a loop that is to be split where a condition in it changes. It needs indices of 32 bits."""

_LEFT_TO_COMPILER = "fleet.left_to_compiler"
"""Our annotation of a loop that the compiler vectorizes best."""

FEWEST_PARALLEL_STEPS = 16_384
"""Number of steps below which waking the other cores (some microseconds) takes longer than the work."""

_FLOAT32_BITS = 32


def extent(schedule: Schedule, loop: LoopRV) -> int:
    """Return the number of iterations of a loop."""
    return int(schedule.get(loop).extent)


def steps(schedule: Schedule, loops: Sequence[LoopRV]) -> int:
    """Return the number of iterations of a nest's body."""
    return math.prod(extent(schedule, loop) for loop in loops)


def add_missing_loops(schedule: Schedule) -> None:
    """Add a loop of one step to each block without loops: TVM's `rfactor` fails beside a block without loops."""
    body = schedule.mod["main"].body.block.body
    statements = body.seq if isinstance(body, SeqStmt) else []
    for name in [found.block.name_hint for found in statements if isinstance(found, SBlockRealize)]:
        schedule.add_unit_loop(schedule.get_sblock(name))


def is_untouched(schedule: Schedule, block: SBlockRV) -> bool:
    """Tell whether a block's loops are its axes, as a compiler made them, including the initialisation of a sum.

    Loops that a schedule has left to the compiler are scheduled.
    """
    own = schedule.get(block)
    loops = [schedule.get(loop) for loop in schedule.get_loops(block)]
    extents = [int(iterator.dom.extent) for iterator in own.iter_vars]
    is_whole = own.init is not None or all(iterator.iter_type == IterVar.DataPar for iterator in own.iter_vars)
    return (
        bool(loops)
        and is_whole
        and [int(loop.extent) for loop in loops] == extents
        and {ForKind.SERIAL} == {loop.kind for loop in loops}
        and not any(_LEFT_TO_COMPILER in loop.annotations for loop in loops)
    )


def split_by_kind(schedule: Schedule, block: SBlockRV, below: int = 0) -> tuple[list[LoopRV], list[LoopRV]]:
    """Return the spatial and the reduction loops of a block; its loops under the first `below` are its axes."""
    loops = list(schedule.get_loops(block))[below:]
    kinds = [iterator.iter_type for iterator in schedule.get(block).iter_vars]
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == IterVar.DataPar]
    sums = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != IterVar.DataPar]
    return spatial, sums


def lanes_of(block: SBlock, facts: ProcessorFacts) -> int:
    """Return how many numbers of the widest type that a block touches fit into a vector register."""
    regions = [*block.reads, *block.writes]
    widest = max((DataType(region.source.dtype).bits for region in regions), default=_FLOAT32_BITS)
    return max(1, facts.lanes * _FLOAT32_BITS // max(8, widest))


def vector_width(size: int, most: int) -> int:
    """Return the widest power of two, up to `most`, that divides an axis; 1 is a scalar."""
    return math.gcd(size, 1 << (most.bit_length() - 1))


def split_at_borders(schedule: Schedule, loop: LoopRV) -> None:
    """Request a loop without conditions between the borders, and separate loops at them."""
    schedule.annotate(loop, SPLIT_HINT, 1)


def leave_to_compiler(schedule: Schedule, loop: LoopRV) -> None:
    """Annotate a loop that the compiler vectorizes better than a schedule does."""
    schedule.annotate(loop, _LEFT_TO_COMPILER, 1)


def share(schedule: Schedule, loops: Sequence[LoopRV], work: int) -> LoopRV:
    """Fuse loops, and parallelize them if there is enough work, counted in steps of the innermost loop."""
    fused = schedule.fuse(*loops)
    if work >= FEWEST_PARALLEL_STEPS:
        schedule.parallel(fused)
    return fused


def enough(
    schedule: Schedule, loops: Sequence[LoopRV], facts: ProcessorFacts, *, tasks_per_core: int = 8
) -> list[LoopRV]:
    """Return the outermost loops that together have enough steps for all cores: fusing more costs divisions."""
    shared: list[LoopRV] = []
    for loop in loops:
        if shared and steps(schedule, shared) >= tasks_per_core * facts.cores:
            break
        shared.append(loop)
    return shared


def domain(block: SBlock) -> int:
    """Return the number of iterations of a block's body."""
    return math.prod(int(iterator.dom.extent) for iterator in block.iter_vars)
