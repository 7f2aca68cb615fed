"""Grouped convolutions with groups padded to whole vectors: removes the padding row by row.

In two passes over the whole result, the second fetches the first one's results from a far cache: ShuffleNet's
first grouped convolution took a fifth longer (Zen 5).
"""

from __future__ import annotations

from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import SBlockRV
from tvm.sym import Analyzer

from fleet.spaces.blocks import is_reduction
from fleet.spaces.column_tiles import ColumnTile
from fleet.spaces.columns import group_of, schedule_columns
from fleet.spaces.elementwise import vectorize_within_groups
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.loops import domain, is_untouched, lanes_of, steps


def schedule_padded_groups(
    schedule: Schedule, block: SBlockRV, facts: ProcessorFacts, tile: ColumnTile | None = None
) -> bool:
    """Schedule a grouped reduction by columns together with its only user, which drops a part of each group.

    Args:
        tile: as `schedule_columns` takes it.

    Returns:
        False: it is no such pair. The schedule may have been changed: work on a copy.
    """
    padded, users = group_of(schedule.get(block)), list(schedule.get_consumers(block))
    if padded is None or len(users) != 1 or not is_untouched(schedule, users[0]):
        return False
    user = schedule.get(users[0])
    kept = group_of(user)
    if kept is None or not _leaves_out_padding(user, schedule.get(block), kept, padded):
        return False
    if not schedule_columns(schedule, block, facts, tile):
        return False
    (result,) = schedule.get_consumers(block)
    # TVM can infer the rows that a block reads only from plain indices: the groups get a separate axis.
    schedule.transform_layout(
        result, ("write", 0), lambda *index: [*index[:-1], index[-1] // padded, index[-1] % padded]
    )
    schedule.reverse_compute_at(users[0], schedule.get_loops(block)[0])
    if steps(schedule, schedule.get_loops(users[0])) != domain(user):
        return False
    vectorize_within_groups(schedule, list(schedule.get_loops(users[0])), kept, lanes_of(user, facts))
    return True


def _leaves_out_padding(user: SBlock, block: SBlock, kept: int, padded: int) -> bool:
    """Tell whether a block reads the first `kept` of each `padded` columns of another, and all of the other axes."""
    regions = [region.region for region in user.reads if region.source.same_as(block.writes[0].source)]
    if is_reduction(user) or len(regions) != 1 or len(regions[0]) != len(user.iter_vars):
        return False
    *outer, column = [iterator.var for iterator in user.iter_vars]
    *others, last = [index.min for index in regions[0]]
    return all(index.same_as(var) for index, var in zip(others, outer, strict=True)) and bool(
        Analyzer().can_prove_equal(last, column // kept * padded + column % kept)
    )
