"""TVM's type checks of schedule calls, with the parts of type hints kept."""

from __future__ import annotations

import pytest
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import _type_checker

from cross.targets.target import parse_target
from fleet.spaces.space import static_schedule
from fleet.workloads.programs import matmul
from fleet.workloads.workload import module_of


def test_static_schedule_takes_each_type_hint_apart_once() -> None:
    """Each call of a schedule checks its arguments by the same few hints."""
    target = parse_target('{"kind": "llvm", "num-cores": 2}')
    mod = module_of(matmul(64).mod_json)
    assert static_schedule(mod, target) is not None
    parts_of = _type_checker._dispatcher  # noqa: SLF001 - TVM has no hook
    before = parts_of.cache_info()

    assert static_schedule(mod, target) is not None

    after = parts_of.cache_info()
    assert after.hits > before.hits
    assert after.misses == before.misses


def test_wrong_argument_of_a_schedule_call_is_still_refused() -> None:
    """The error is TVM's own."""
    target = parse_target('{"kind": "llvm", "num-cores": 2}')
    mod = module_of(matmul(64).mod_json)
    static_schedule(mod, target)
    schedule = Schedule(mod)

    with pytest.raises(TypeError, match="get_loops"):
        schedule.get_loops(1.5)
