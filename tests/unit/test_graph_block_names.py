"""A program has the same names in each model, so that the schedules of one fit it in all others."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from cross.targets.target import make_target
from fleet.graph.block_names import block_names
from fleet.graph.pipeline import lower
from fleet.spaces.space import static_schedule
from fleet.workloads.applying import workload_hash, workload_module
from fleet.workloads.traces import replay, trace_json, tuning_record
from tests.unit.graph_models import TARGET, function_of, random_array

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


def normalized(layers: int) -> list[IRModule]:
    """Return the tunable modules behind so many layers: a norm and a softmax of sums."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        for _ in range(layers):
            x = emit(relax.op.nn.relu(emit(relax.op.matmul(x, relax.const(random_array(24, 24))))))
        scale, shift = relax.const(random_array(24)), relax.const(random_array(24, seed=1))
        norm = emit(relax.op.nn.layer_norm(x, scale, shift, axes=[-1]))
        largest = emit(relax.op.max(norm, axis=[-1], keepdims=True))
        return relax.op.add(largest, emit(relax.op.sum(norm, axis=[-1], keepdims=True)))

    with make_target(TARGET):
        lowered = lower(function_of([(16, 24)], body), TARGET)
    return [workload_module(lowered[variable]) for variable in lowered.functions if variable.name_hint != "main"]


def test_a_schedule_fits_the_same_program_of_another_model() -> None:
    """The programs before it in the model do not matter."""
    others = {workload_hash(mod): mod for mod in normalized(3)}
    fitting = [(mod, others[workload_hash(mod)]) for mod in normalized(1) if workload_hash(mod) in others]

    assert any("T_var_sum" in block_names(mod["main"]) for mod, _ in fitting)
    for mod, other in fitting:
        assert block_names(mod["main"]) == block_names(other["main"])
        schedule = static_schedule(mod, TARGET)
        assert schedule is not None
        replay(other, trace_json(schedule))


def test_a_schedule_with_other_names_fits_too() -> None:
    """Schedules of older libraries and of stock TVM have blocks that are named after variables of a model."""
    from tvm.s_tir.meta_schedule.database import Workload

    mod = next(mod for mod in normalized(1) if "T_var_sum" in block_names(mod["main"]))
    schedule = static_schedule(mod, TARGET)
    assert schedule is not None
    trace = trace_json(schedule)
    older = re.sub(r'"T_(?=(var_sum|sum|mean)")', '"lv85_', trace)

    assert older != trace
    assert trace_json(replay(mod, older)) == trace
    assert tuning_record(older, [1.0], None, Workload(mod)).trace.as_json()[0]
