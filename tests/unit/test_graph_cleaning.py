"""Superfluous parts of exported models are removed, and the numbers stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fleet.graph.cleaning import CLEANING
from fleet.graph.folding import FOLDING
from fleet.graph.rebuilding import rewrite
from fleet.graph.scaling import SCALING
from tests.unit.graph_models import function_of, operators, random_array, run

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


def cleaned(mod: IRModule) -> IRModule:
    """Apply the pipeline's first passes."""
    return rewrite(mod, FOLDING, CLEANING, SCALING)


def norm(x: Expr, channels: int) -> Expr:
    """A batch norm as exporters write it."""
    from tvm import relax

    gamma, beta, mean = (relax.const(random_array(channels, seed=seed)) for seed in (1, 2, 3))
    variance = relax.const(random_array(channels, seed=4) ** 2)
    result = relax.op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1, training=False)
    return relax.TupleGetItem(result, 0)


def test_batch_norm_goes_into_the_convolution_before_it() -> None:
    """Convolution, bias and norm become a convolution and one addition."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        convolved = relax.op.nn.conv2d(x, relax.const(random_array(8, 4, 3, 3)), padding=1)
        biased = relax.op.add(convolved, relax.op.reshape(relax.const(random_array(8)), (1, 8, 1, 1)))
        return relax.op.nn.relu(norm(biased, 8))

    mod, x = function_of([(1, 4, 9, 9)], body), random_array(1, 4, 9, 9)

    found = cleaned(mod)

    assert {"nn.conv2d": 1, "add": 1, "nn.relu": 1} == operators(found)
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_weights_that_two_read_are_not_scaled() -> None:
    """A convolution with a second reader beside its norm keeps its weights."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        convolved = emit(relax.op.nn.conv2d(x, relax.const(random_array(8, 4, 1, 1))))
        return relax.op.add(norm(convolved, 8), relax.op.nn.relu(convolved))

    mod, x = function_of([(1, 4, 5, 5)], body), random_array(1, 4, 5, 5)

    found = cleaned(mod)

    assert {"nn.conv2d": 1, "multiply": 1, "add": 2, "nn.relu": 1} == operators(found)
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_a_norm_that_follows_no_weights_is_a_multiplication_and_an_addition() -> None:
    """DenseNet normalizes concatenated tensors."""
    mod, x = function_of([(1, 6, 5, 5)], lambda x, emit: norm(x, 6)), random_array(1, 6, 5, 5)

    found = cleaned(mod)

    assert {"multiply": 1, "add": 1} == operators(found)
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_dropout_and_reshapes_without_effect_are_removed() -> None:
    """Operators that compute nothing are removed entirely."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        dropped = relax.TupleGetItem(relax.op.nn.dropout(x), 0)
        there = relax.op.reshape(relax.op.expand_dims(dropped, 0), (3, 4))
        turned = relax.op.permute_dims(relax.op.permute_dims(there, [1, 0]), [1, 0])
        return relax.op.nn.relu(relax.op.broadcast_to(turned, (3, 4)))

    mod, x = function_of([(3, 4)], body), random_array(3, 4)

    found = cleaned(mod)

    assert {"nn.relu": 1} == operators(found)
    np.testing.assert_array_equal(np.maximum(x, 0), run(found, x))


@pytest.mark.parametrize(("name", "operator"), [("sum", "add"), ("max", "maximum"), ("min", "minimum")])
def test_a_reduction_over_a_stack_becomes_one_operator_after_another(name: str, operator: str) -> None:
    """ONNX's Sum, Max and Min arrive as reductions over a stack, which nothing could be fused with."""

    def body(x: Expr, y: Expr, z: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return getattr(relax.op, name)(relax.op.stack([x, y, z], axis=0), axis=0)

    mod = function_of([(3, 4)] * 3, body)
    inputs = [random_array(3, 4, seed=seed) for seed in range(3)]

    found = cleaned(mod)

    assert {operator: 2} == operators(found)
    np.testing.assert_allclose(getattr(np, name)(np.stack(inputs), axis=0), run(found, *inputs), rtol=1e-5)


def test_constants_are_dequantized_once() -> None:
    """Quantized weights with scales per channel become constants, and squares become products."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        weights = relax.const(np.arange(12, dtype="int8").reshape(3, 4))
        scale, zero = relax.const(np.array([0.5, 1, 2, 4], "float32")), relax.const(np.array([1, 2, 3, 4], "int8"))
        real = relax.op.dequantize(weights, scale, zero, axis=1)
        return relax.op.power(relax.op.add(x, real), relax.const(np.float32(2)))

    mod, x = function_of([(3, 4)], body), random_array(3, 4)

    found = cleaned(mod)

    assert {"add": 1, "multiply": 1} == operators(found)
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-5)


def test_weights_are_transposed_once_and_for_all() -> None:
    """A Gemm's weights come transposed; they are stored as the product reads them."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        product = relax.op.matmul(x, relax.op.permute_dims(relax.const(random_array(5, 4)), [1, 0]))
        return relax.op.divide(relax.op.subtract(product, relax.const(random_array(5))), relax.const(np.float32(2)))

    mod, x = function_of([(3, 4)], body), random_array(3, 4)

    found = cleaned(mod)

    assert {"matmul": 1, "add": 1} == operators(found)
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exponent", range(2, 6))
def test_whole_powers_are_multiplications(exponent: int) -> None:
    """Negative bases give the right results, also if the library's function is fast."""
    from tvm import relax

    power = np.full((1, 1), exponent, "float32")
    mod, x = function_of([(3, 4)], lambda x, emit: relax.op.power(x, relax.const(power))), random_array(3, 4)

    found = cleaned(mod)

    assert set(operators(found)) == {"multiply"}
    np.testing.assert_allclose(run(found, x), x**exponent, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0.5, -1.0, 7.0])
def test_other_constant_exponents_are_known_to_the_program(exponent: float) -> None:
    """A constant of equal numbers becomes a scalar, which TVM writes into the program."""
    from tvm import relax

    powers = np.full((1, 4), exponent, "float32")
    mod, x = function_of([(3, 4)], lambda x, emit: relax.op.power(x, relax.const(powers))), abs(random_array(3, 4))

    found = cleaned(mod)

    [call] = [binding.value for block in found["main"].body.blocks for binding in block.bindings][:1]
    assert int(call.args[1].ty.ndim) == 0
    np.testing.assert_allclose(run(found, x), x**exponent, rtol=1e-5)


def test_a_square_that_may_repeat_its_base_stays() -> None:
    """With an open size it is unknown whether the base repeats; the rewritten result had the base's shape."""
    from tvm import relax, tirx

    twos = np.full((1, 4), 2, "float32")
    mod = function_of([(tirx.Var("n", "int64"), 1)], lambda x, emit: relax.op.power(x, relax.const(twos)))

    assert {"power": 1} == operators(cleaned(mod))
