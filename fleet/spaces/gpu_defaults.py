"""TVM's default schedules for GPUs, used for untuned programs and references."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cross.targets.target import make_target
from fleet.spaces.design_space import Facts, Space
from fleet.spaces.facts import GpuFacts

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.dlight import ScheduleRule


class DefaultOnGpus:
    """The rule for all functions on GPUs."""

    def space(self, mod: IRModule, facts: Facts) -> Space | None:
        if not isinstance(facts, GpuFacts):
            return None
        return Space(rule="default", choices=(), schedules_at=lambda _: _schedules(mod, facts), is_baseline=True)


def default_rules() -> list[ScheduleRule]:
    """Return TVM's rules in the order in which they are tried."""
    from tvm.s_tir import dlight

    rules = dlight.gpu
    return [rules.Matmul(), rules.GEMV(), rules.Reduction(), rules.GeneralReduction(), rules.Fallback()]


def _schedules(mod: IRModule, facts: GpuFacts) -> Iterator[Schedule]:
    """Yield the only schedule; nothing if no rule has one."""
    target = make_target(facts.target)
    with target:
        for rule in default_rules():
            schedule = rule.apply(mod.clone()["main"], target, False)
            if schedule is not None:
                yield schedule
                return
