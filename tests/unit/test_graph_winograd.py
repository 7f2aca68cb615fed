"""3x3 convolutions by Winograd's algorithm: where they win, the same numbers, everything behind them fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fleet.checking.numerics import compare
from fleet.domain.operators import describe_workload
from fleet.graph.pipeline import lower
from fleet.graph.winograd import best_outputs
from fleet.workloads.applying import apply_schedules
from fleet.workloads.workload import workload_of
from tests.unit.graph_models import TARGET, function_of, random_array, run

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit


def test_it_is_chosen_where_it_is_less_work() -> None:
    """With few pixels for each weight it uses smaller tiles, which have smaller weights; with very few, none."""
    assert best_outputs(1, 56, 56, channels=64, filters=64) == 4
    assert best_outputs(1, 14, 14, channels=512, filters=512) == 2
    assert best_outputs(1, 3, 3, channels=512, filters=512) is None


def convolved(shape: tuple[int, ...], filters: int, padding: object) -> IRModule:
    """Return a convolution with bias and activation, and a residual where it has as many channels as its data."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        found = relax.op.nn.conv2d(x, relax.const(random_array(filters, shape[1], 3, 3, seed=1)), padding=padding)
        found = relax.op.nn.relu(relax.op.add(found, relax.const(random_array(1, filters, 1, 1, seed=2))))
        return relax.op.add(found, x) if filters == shape[1] else found

    return function_of([shape], body)


def winograd_programs(mod: IRModule) -> list[str]:
    return [variable.name_hint for variable in mod.functions if "winograd" in variable.name_hint]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "filters", "padding"),
    [
        ((2, 32, 9, 11), 32, 1),
        ((1, 32, 14, 14), 48, 0),
        ((1, 16, 22, 16), 32, [0, 1, 2, 1]),
    ],
)
def test_it_computes_the_same(shape: tuple[int, ...], filters: int, padding: object) -> None:
    """The result equals the plain convolution's for all sizes and paddings."""
    mod = convolved(shape, filters, padding=padding)
    lowered = lower(mod, TARGET)
    x = random_array(*shape)

    outputs = run(apply_schedules(lowered, TARGET, {}).mod, x)

    assert len(winograd_programs(lowered)) == 1
    assert compare([outputs], [run(mod, x)], reduction_size=9 * shape[1]) is None


@pytest.mark.slow
def test_bias_activation_and_residual_stay_in_the_program() -> None:
    """Its description is that of a convolution, with the word winograd."""
    lowered = lower(convolved((1, 32, 12, 12), 32, padding=1), TARGET)

    [name] = winograd_programs(lowered)
    workload = workload_of(lowered[lowered.get_global_var(name)], name=name)
    assert all(operator in name for operator in ("add", "relu"))
    assert len(lowered.functions) == 4, "main, the convolution, a transpose before and one after it"
    assert describe_workload(name, workload.args) == "conv2d 3x3 winograd 32->32 12x12"


@pytest.mark.slow
@pytest.mark.parametrize(
    "attrs",
    [{"strides": 2}, {"dilation": 2}, {"groups": 2}, {"kernel": 5}],
    ids=lambda attrs: next(iter(attrs)),
)
def test_other_convolutions_stay_as_they_are(attrs: dict[str, object]) -> None:
    """The algorithm is for kernels of 3x3 that skip nothing."""
    groups = int(str(attrs.get("groups", 1)))

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        given = dict(attrs)
        size = int(str(given.pop("kernel", 3)))
        return relax.op.nn.conv2d(x, relax.const(random_array(32, 32 // groups, size, size)), **given)

    assert not winograd_programs(lower(function_of([(1, 32, 12, 12)], body), TARGET))


@pytest.mark.slow
def test_kernels_that_are_computed_stay_as_they_are() -> None:
    """Only constant weights can be transformed before the model runs."""

    def body(x: Expr, weights: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.nn.conv2d(x, weights)

    assert not winograd_programs(lower(function_of([(1, 32, 12, 12), (32, 32, 3, 3)], body), TARGET))
