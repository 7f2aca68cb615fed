"""Constants that an operator repeats anyway are stored once, and the numbers stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.graph.broadcasts import BROADCASTS
from fleet.graph.rebuilding import rewrite
from tests.unit.graph_models import function_of, operators, random_array, run

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow

SHAPE = (1, 4, 5, 6)


def at_most(bound: np.ndarray) -> IRModule:
    """Return a module with the minimum of an input of SHAPE and a constant."""

    def body(x: Expr, _emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.minimum(relax.const(bound), x)

    return function_of([SHAPE], body)


def constant_shapes(mod: IRModule) -> list[tuple[int, ...]]:
    """Return the shapes of the constants that main's first call reads."""
    from tvm import ir

    call = mod["main"].body.blocks[0].bindings[0].value
    return [tuple(arg.value.shape) for arg in call.args if isinstance(arg, ir.GenericConst)]


def test_the_six_of_a_relu6_is_one_number() -> None:
    """A bound that was written out for every element is read once, and does the same."""
    mod, x = at_most(np.full(SHAPE, 0.5, "float32")), random_array(*SHAPE)

    found = rewrite(mod, BROADCASTS)

    assert [(1, 1, 1, 1)] == constant_shapes(found)
    assert {"minimum": 1} == operators(found)
    np.testing.assert_array_equal(run(mod, x), run(found, x))


def test_axes_along_which_a_constant_varies_stay() -> None:
    """A bound for each channel, written out for every pixel, is one number for each channel."""
    by_channel = random_array(4).reshape(1, 4, 1, 1)
    mod, x = at_most(np.broadcast_to(by_channel, SHAPE).copy()), random_array(*SHAPE)

    found = rewrite(mod, BROADCASTS)

    assert [(1, 4, 1, 1)] == constant_shapes(found)
    np.testing.assert_array_equal(run(mod, x), run(found, x))


@pytest.mark.parametrize("bound", [random_array(*SHAPE), np.ones((1, 4, 1, 1), "float32")])
def test_constants_that_vary_and_biases_stay_as_they_are(bound: np.ndarray) -> None:
    """A bias with equal elements stays a tensor, since other weights must not change the program."""
    assert [bound.shape] == constant_shapes(rewrite(at_most(bound), BROADCASTS))


def test_a_constant_that_gives_a_result_its_shape_stays() -> None:
    """An input of one row that is compared with a matrix of equal numbers becomes a matrix."""

    def body(x: Expr, _emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.maximum(x, relax.const(np.zeros((3, 6), "float32")))

    mod, x = function_of([(1, 6)], body), random_array(1, 6)

    found = rewrite(mod, BROADCASTS)

    assert (3, 6) == run(found, x).shape
    np.testing.assert_array_equal(run(mod, x), run(found, x))
