"""Finds the design space of a function: the first rule that has one decides.

Rules are tried in the order of `fleet.spaces.rules`. The first schedule of a space is the static one, which is used
without any trial.

The rules need TVM when they are imported, so functions here import them: processes without TVM import this module, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cross.targets.target import Target
from fleet.spaces.blocks import child_blocks
from fleet.spaces.design_space import Facts, Space
from fleet.spaces.facts import facts_of, processor_facts
from fleet.spaces.type_checks import keep_parts_of_hints

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule


def static_schedule(mod: IRModule, target: Target) -> Schedule | None:
    """Return the best schedule that can be chosen without a measurement; None if there is none for this target.

    Args:
        mod: one function, "main".
        target: for GPUs only installed rules have schedules; TVM's own rules serve them otherwise.
    """
    return next(schedules(mod, target), None)


def schedules(mod: IRModule, target: Target) -> Iterator[Schedule]:
    """Yield all schedules of a function's space, the most promising first. The first is the static one."""
    space = space_of(mod, target)
    if space is not None and not space.is_baseline:
        yield from space.schedules_at(range(len(space.choices)))


def space_of(mod: IRModule, target: Target) -> Space | None:
    """Return a function's space; None if there is none for this target."""
    facts = facts_of(target)
    return None if facts is None else space_on(mod, facts)


def space_on(mod: IRModule, facts: Facts) -> Space | None:
    """Return a function's space on a processor or GPU; None for an opaque function or one with open sizes."""
    from fleet.spaces.rules import all_rules

    if not _is_plain(mod):
        return None
    keep_parts_of_hints()
    spaces = (rule.space(mod, facts) for rule in all_rules())
    return next((space for space in spaces if space is not None), None)


def finished(scheduled: IRModule, target: Target) -> IRModule:
    """Return a scheduled module ready for compilation: math functions become vector arithmetic, loops are split at
    borders.

    Steps of a schedule cannot express this, and a stored schedule must replay to the same program. So every compilation
    finishes its module; references stay as they are.
    """
    from fleet.spaces.indices import with_narrow_indices
    from fleet.spaces.vector_math.rewriting import with_arithmetic_functions

    if processor_facts(target) is None:
        return scheduled
    return with_narrow_indices(with_arithmetic_functions(scheduled))


def _is_plain(mod: IRModule) -> bool:
    """Tell whether a function consists of blocks with loops of fixed size, as a compiler made them."""
    from tvm.s_tir import SBlockRealize, Schedule
    from tvm.tirx import IntImm

    schedule = Schedule(mod)
    if not isinstance(mod["main"].body, SBlockRealize) or mod["main"].body.block.name_hint != "root":
        return False  # an opaque function, such as a scan
    blocks = child_blocks(schedule)
    return bool(blocks) and all(
        isinstance(iterator.dom.extent, IntImm) for block in blocks for iterator in schedule.get(block).iter_vars
    )
