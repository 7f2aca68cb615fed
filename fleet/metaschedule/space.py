"""`FleetSpace`: the fleet's own schedules as a design space of MetaSchedule, in addition to its rules.

    ms.tune_tir(mod, target, ..., space=FleetSpace(target))

Weights are packed only where a function says which of its arguments are constant (`fleet.graph.marking`); a stock
script's function says nothing of the kind, so its signature stays as it is.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tvm.ir.utils import derived_object
from tvm.s_tir.meta_schedule.space_generator import PySpaceGenerator

from cross.targets.intrinsics import load_intrinsics
from cross.targets.target import parse_target
from fleet.domain.keys import canonical_target
from fleet.errors import InvalidRequest
from fleet.spaces.space import schedules

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.space_generator import SpaceGenerator
    from tvm.target import Target


def FleetSpace(target: Target | dict[str, object], *, most: int = 16, with_rules: bool = True) -> SpaceGenerator:  # noqa: N802
    """Return a space generator for `tune_tir` and `TuneContext`.

    Args:
        target: target of the search. On GPUs the space holds MetaSchedule's rules only.
        most: maximum number of the fleet's schedules, the most promising ones.
        with_rules: let MetaSchedule's own rules (post-order-apply) compete in the same search.

    Raises:
        RuntimeError: at the start of a search for another target. TVM turns all errors into this class.
    """
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply, ScheduleFn, SpaceGeneratorUnion
    from tvm.target import Target

    parsed = parse_target(str(Target(target)))
    load_intrinsics(parsed)

    def own_space(schedule: Schedule) -> list[Schedule]:
        return list(itertools.islice(schedules(schedule.mod, parsed), most))

    own = [SameTarget(parsed.json), ScheduleFn(own_space)]
    return SpaceGeneratorUnion([*own, PostOrderApply()] if with_rules else own)


@derived_object
class SameTarget(PySpaceGenerator):  # type: ignore[misc]
    """Empty space that refuses searches for another target."""

    def __init__(self, target_json: str) -> None:
        super().__init__()
        self.sch_rules: list[object] = []
        self.postprocs: list[object] = []
        self.mutator_probs: dict[object, float] = {}
        self._target_json = target_json

    def _initialize_with_tune_context(self, context: TuneContext) -> None:
        searched = str(context.target)
        if canonical_target(searched) != canonical_target(self._target_json):
            raise InvalidRequest(f"FleetSpace is for {self._target_json}, and the search for {searched}; give both one")

    def generate_design_space(self, mod: IRModule) -> list[Schedule]:
        return []

    def clone(self) -> SameTarget:
        return SameTarget(self._target_json)
