"""Inlining of element-wise blocks: decides between recomputation at each use and storing once.

Inlining saves a pass over memory. It costs where a result is used more than once: then it is computed more than once.
"""

from __future__ import annotations

import tvm_ffi
from tvm.ir import Call, Op
from tvm.ir.prim import expr as prim
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.tirx import Stmt

from fleet.spaces.blocks import child_blocks, is_copy, is_reduction
from fleet.spaces.loops import domain


def inline_all(schedule: Schedule, products: frozenset[str], *, kept: frozenset[str] = frozenset()) -> None:
    """Inline element-wise blocks into their users, unless that repeats costly work.

    Args:
        products: names of blocks that read each element many times; only copies are inlined into them.
        kept: names of blocks that are not inlined.
    """
    for block in child_blocks(schedule):
        users = list(schedule.get_consumers(block))
        names = {schedule.get(user).name_hint for user in users}
        is_work = not is_copy(schedule.get(block))
        if schedule.get(block).name_hint in kept or is_reduction(schedule.get(block)):
            continue
        if not users or (is_work and products & names):
            continue
        if is_work and _repeats_costly_work(schedule, block, users):
            continue
        try:
            schedule.compute_inline(block)
        except ScheduleError:  # not a plain function of its indices
            continue


def _repeats_costly_work(schedule: Schedule, block: SBlockRV, users: list[SBlockRV]) -> bool:
    own = schedule.get(block)
    uses = sum(domain(schedule.get(user)) for user in users)
    if uses <= domain(own):
        return False
    return _is_costly(own.body) or any(is_reduction(schedule.get(maker)) for maker in schedule.get_producers(block))


def _is_costly(body: Stmt) -> bool:
    """Tell whether a block costs more than a handful of cycles: it calls a function, or divides."""
    found = False

    def visit_call(call: Call) -> None:
        nonlocal found
        found = found or (isinstance(call.op, Op) and call.op.name not in _CHEAP)

    def visit_division(division: prim.Div) -> None:
        nonlocal found
        found = found or "float" in str(division.ty.dtype)

    tvm_ffi.structural_walk(body, [(Call, visit_call), (prim.Div, visit_division)])
    return found


_CHEAP = frozenset(
    {"prim.if_then_else", "prim.likely", "tirx.reinterpret", "tirx.fabs", "tirx.floor", "tirx.ceil", "tirx.round"}
)
