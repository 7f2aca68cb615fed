"""Root-mean-square norms of single operators become one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.graph.norms import NORMS
from fleet.graph.rebuilding import rewrite
from tests.unit.graph_models import function_of, operators, random_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

    Norm = Callable[[Expr, Emit], Expr]


def mean_square(x: Expr, emit: Emit, *, axis: int = -1) -> Expr:
    from tvm import relax

    mean = emit(relax.op.mean(emit(relax.op.multiply(x, x)), axis=[axis], keepdims=True))
    return emit(relax.op.add(mean, relax.const(1e-5, "float32")))


def by_inverse(x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    root = emit(relax.op.sqrt(mean_square(x, emit)))
    return relax.op.multiply(x, emit(relax.op.divide(relax.const(1.0, "float32"), root)))


def by_inverse_root(x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    return relax.op.multiply(emit(relax.op.rsqrt(mean_square(x, emit))), x)


def by_division(x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    return relax.op.divide(x, emit(relax.op.sqrt(mean_square(x, emit))))


def along_another_axis(x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    return relax.op.multiply(x, emit(relax.op.rsqrt(mean_square(x, emit, axis=1))))


def of_another_tensor(x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    return relax.op.multiply(emit(relax.op.negative(x)), emit(relax.op.rsqrt(mean_square(x, emit))))


@pytest.mark.parametrize("norm", [by_inverse, by_inverse_root, by_division])
def test_norm_is_one_operator(norm: Norm) -> None:
    """All forms of its root are recognised."""
    mod = function_of([(2, 3, 8)], lambda x, emit: weighted(norm, x, emit))

    assert {"nn.rms_norm": 1} == operators(rewrite(mod, NORMS))


@pytest.mark.parametrize("norm", [along_another_axis, of_another_tensor])
def test_similar_patterns_are_not_norms(norm: Norm) -> None:
    """The pattern differs from a norm in its axis or in its scaled tensor."""
    mod = function_of([(2, 8, 8)], lambda x, emit: weighted(norm, x, emit))

    assert operators(mod) == operators(rewrite(mod, NORMS))


@pytest.mark.slow
def test_norm_computes_the_same() -> None:
    """The operator's epsilon is the model's."""
    from tests.unit.graph_models import run

    mod, x = function_of([(2, 3, 8)], lambda x, emit: weighted(by_inverse, x, emit)), 1e-3 * random_array(2, 3, 8)

    np.testing.assert_allclose(run(mod, x), run(rewrite(mod, NORMS), x), rtol=1e-5)


def weighted(norm: Norm, x: Expr, emit: Emit) -> Expr:
    from tvm import relax

    return relax.op.multiply(emit(norm(x, emit)), relax.const(random_array(8)))
