"""The fleet's schedules inside stock MetaSchedule."""

from __future__ import annotations

import pytest

from cross.targets.target import host_target
from fleet.metaschedule import FleetSpace

pytestmark = pytest.mark.slow

HOST = dict(host_target().options)


def test_a_search_tries_the_fleets_schedules_and_metaschedules_own() -> None:
    """Both are design spaces of one search; without the rules, only the fleet's are."""
    import tvm
    from tvm import te, topi
    from tvm.s_tir import meta_schedule as ms

    a, b = (te.placeholder((64, 64), name=name) for name in "ab")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, topi.nn.matmul(a, b)])})
    target = tvm.target.Target(HOST)
    spaces = {
        with_rules: ms.TuneContext(
            mod, target=target, space_generator=FleetSpace(HOST, most=4, with_rules=with_rules), num_threads=1
        ).generate_design_space()
        for with_rules in (True, False)
    }

    assert len(spaces[False]) == 4
    assert all(len(schedule.trace.decisions) == 0 for schedule in spaces[False])
    assert len(spaces[True]) > 4
    assert any(len(schedule.trace.decisions) > 0 for schedule in spaces[True])


def test_a_search_for_another_target_is_refused() -> None:
    """Before, schedules for one instruction set were tried for another without an error."""
    import tvm
    from tvm import te, topi
    from tvm.s_tir import meta_schedule as ms

    a, b = (te.placeholder((64, 64), name=name) for name in "ab")
    mod = tvm.IRModule({"main": te.create_prim_func([a, b, topi.nn.matmul(a, b)])})
    other = tvm.target.Target({"kind": "llvm", "mcpu": "core2", "num-cores": 2})

    with pytest.raises(RuntimeError, match=r"FleetSpace is for .* and the search for .*core2"):
        ms.TuneContext(mod, target=other, space_generator=FleetSpace(HOST), num_threads=1)
