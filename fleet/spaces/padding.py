"""Padding of columns: if windows move along the innermost axis, a condition would differ from lane to lane.

So it is not inlined, as that of rows is. Each row of tiles has its data copied into a padded one, from which whole
vectors are read: the sums of a local response norm took 0.15 to 0.2 of the time (Zen 4).
"""

from __future__ import annotations

from tvm.ir import Call, Op
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.tirx import BufferStore, FloatImm, IntImm, IterVar

from fleet.spaces.blocks import child_blocks, is_reduction, names_in, stride_of


def padded_columns(schedule: Schedule) -> frozenset[str]:
    """Return the names of blocks that pad the innermost axis for the windows of one reduction each."""
    found = set()
    for block in child_blocks(schedule):
        users, own = list(schedule.get_consumers(block)), schedule.get(block)
        if len(users) == 1 and _pads_columns(own) and _moves_along_columns(schedule.get(users[0]), own):
            found.add(own.name_hint)
    return frozenset(found)


def padding_of(schedule: Schedule, block: SBlockRV) -> SBlockRV | None:
    """Return the block that pads the columns of a reduction's source, or None."""
    names = padded_columns(schedule)
    makers = [maker for maker in schedule.get_producers(block) if schedule.get(maker).name_hint in names]
    return makers[0] if len(makers) == 1 else None


def pad_within(schedule: Schedule, padding: SBlockRV, loop: LoopRV) -> None:
    """Pad the source of one step of a loop: the border is filled, the rest copied without conditions.

    Raises:
        tvm.s_tir.schedule.ScheduleError: the loop does not contain all that reads the padded data.
    """
    axes = len(schedule.get(padding).iter_vars)
    schedule.compute_at(padding, loop, preserve_unit_loops=True)
    schedule.decompose_padding(padding, schedule.get_loops(padding)[-axes])


def _pads_columns(block: SBlock) -> bool:
    value = block.body.value if isinstance(block.body, BufferStore) else None
    if not isinstance(value, Call) or not isinstance(value.op, Op) or value.op.name != "prim.if_then_else":
        return False
    condition, _, border = value.args
    return isinstance(border, (FloatImm, IntImm)) and block.iter_vars[-1].var.name in names_in(condition)


def _moves_along_columns(block: SBlock, padding: SBlock) -> bool:
    """Tell whether a reduction reads windows of the innermost axis, one for each of its columns."""
    if not is_reduction(block):
        return False
    columns = [it.var for it in block.iter_vars if it.iter_type == IterVar.DataPar][-1:]
    sums = {it.var.name for it in block.iter_vars if it.iter_type == IterVar.CommReduce}
    padded = padding.writes[0].source
    read = [region.region[-1].min for region in block.reads if region.source.same_as(padded)]
    return bool(read and columns) and all(
        stride_of(index, columns[0]) == 1 and names_in(index) & sums for index in read
    )
