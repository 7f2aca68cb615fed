"""Channels come last, operators on the way keep their numbers, and no transposes are left in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from cross.targets.intrinsics import keep_package_light
from fleet.graph.channels_last import CHANNELS_LAST
from fleet.graph.cleaning import CLEANING, FINISHING
from fleet.graph.folding import FOLDING
from fleet.graph.rebuilding import rewrite
from fleet.graph.upsampling import UPSAMPLING
from tests.unit.graph_models import function_of, operators, random_array, run

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.relax import Expr

    from tests.unit.graph_models import Emit

pytestmark = pytest.mark.slow


def channels_last(mod: IRModule) -> IRModule:
    """Apply the pipeline's passes for CPUs."""
    return rewrite(rewrite(mod, FOLDING, CLEANING, UPSAMPLING, CHANNELS_LAST), FOLDING, FINISHING, CLEANING)


def conv(x: Expr, channels: int, out_channels: int, size: int = 3, groups: int = 1) -> Expr:
    """A convolution with random weights that keeps height and width."""
    from tvm import relax

    weights = random_array(out_channels, channels // groups, size, size, seed=out_channels) / channels
    return relax.op.nn.conv2d(x, relax.const(weights), padding=size // 2, groups=groups)


def test_a_network_is_converted_at_its_input_only() -> None:
    """Bias, pooling, concat, residual, gates, and a flatten before the classifier go without a transpose."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        op = relax.op
        first = emit(op.nn.relu(op.add(conv(x, 4, 8), relax.const(random_array(1, 8, 1, 1)))))
        pooled = emit(op.nn.max_pool2d(first, (2, 2), (2, 2)))
        both = emit(op.concat([conv(pooled, 8, 4, size=1), conv(pooled, 8, 4)], axis=1))
        gate = op.sigmoid(conv(op.mean(both, [2, 3], keepdims=True), 8, 8, size=1))
        gated = op.multiply(op.add(both, pooled), gate)
        flat = op.reshape(op.nn.avg_pool2d(gated, (2, 2), (1, 1)), (2, 72))
        return op.nn.softmax(op.matmul(flat, relax.const(random_array(72, 5))))

    mod, x = function_of([(2, 4, 8, 8)], body), random_array(2, 4, 8, 8)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 1
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_response_normalization_over_channels_stays_where_it_is() -> None:
    """Such a normalization is a pooling with channels as a spatial axis."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        first = emit(conv(x, 3, 8))
        squares = relax.op.expand_dims(relax.op.multiply(first, first), 1)
        mean = relax.op.nn.avg_pool3d(squares, (5, 1, 1), padding=(2, 0, 0), count_include_pad=True)
        return relax.op.nn.relu(relax.op.divide(first, relax.op.exp(relax.op.squeeze(mean, [1]))))

    mod, x = function_of([(1, 3, 5, 6)], body), random_array(1, 3, 5, 6)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 2, "one at the input, one at the output, which is an image, too"
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_a_shuffle_of_channels_is_a_transpose_of_channels_only() -> None:
    """ShuffleNet splits the channels, swaps the parts and joins them: nothing else moves."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        parts = relax.op.reshape(conv(x, 4, 6, size=1), (1, 2, 3, 5, 5))
        swapped = relax.op.reshape(relax.op.permute_dims(parts, [0, 2, 1, 3, 4]), (1, 6, 5, 5))
        return relax.op.mean(conv(swapped, 6, 6, groups=6), [2, 3])

    mod, x = function_of([(1, 4, 5, 5)], body), random_array(1, 4, 5, 5)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 2
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_patches_become_tokens_without_a_transpose() -> None:
    """A vision transformer flattens its patches and puts the channels last itself."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        patches = relax.op.nn.conv2d(x, relax.const(random_array(6, 3, 4, 4)), strides=4)
        tokens = relax.op.permute_dims(relax.op.reshape(patches, (1, 6, 4)), [0, 2, 1])
        return relax.op.matmul(tokens, relax.const(random_array(6, 5)))

    mod, x = function_of([(1, 3, 8, 8)], body), random_array(1, 3, 8, 8)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 1
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_operators_without_a_rule_get_the_models_layout() -> None:
    """An operator without a rule gets its input in the model's layout."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        return relax.op.nn.relu(relax.op.tile(conv(x, 3, 4), (1, 2, 1, 1)))

    mod, x = function_of([(1, 3, 5, 5)], body), random_array(1, 3, 5, 5)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 2
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_operators_that_name_axes_follow() -> None:
    """Padding, slices, splits and norms work on the axes that they name, wherever these lie."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        op = relax.op
        scale, shift = (relax.const(random_array(8, seed=seed)) for seed in (1, 2))
        padded = op.nn.pad(op.nn.group_norm(conv(x, 3, 8), scale, shift, 2, 1, [2, 3]), [0, 0, 0, 0, 1, 0, 0, 2])
        normed = op.nn.layer_norm(padded, scale, shift, [1])
        parts = emit(op.split(op.strided_slice(normed, [1, 2], [0, 1], [6, 5]), 2, axis=1))
        left, right = relax.TupleGetItem(parts, 0), relax.TupleGetItem(parts, 1)
        return op.mean(op.multiply(left, op.flip(right, 2)), [2, 3])

    mod, x = function_of([(1, 3, 5, 6)], body), random_array(1, 3, 5, 6)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 1
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_other_layouts_are_transposed_once() -> None:
    """A gate from another input, with channels first, is transposed once; quantizing changes no layout."""

    def body(x: Expr, gate: Expr, emit: Emit) -> Expr:
        from tvm import relax

        scale, zero = relax.const(np.float32(0.5)), relax.const(np.int8(3))
        gated = relax.op.multiply(conv(x, 3, 4), gate)
        quantized = relax.op.quantize(gated, scale, zero, axis=1)
        return relax.op.mean(relax.op.dequantize(quantized, scale, zero, axis=1), [2, 3])

    mod = function_of([(1, 3, 5, 5), (1, 4, 5, 5)], body)
    inputs = random_array(1, 3, 5, 5), random_array(1, 4, 5, 5, seed=1)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 2
    np.testing.assert_allclose(run(mod, *inputs), run(found, *inputs), rtol=1e-4, atol=1e-5)


def test_an_open_batch_size_keeps_no_layout_back() -> None:
    """Biases and activations follow where only the batch size is not known."""
    keep_package_light()
    from tvm import relax, tirx

    def body(x: Expr, emit: Emit) -> Expr:
        biased = relax.op.add(conv(x, 3, 4), relax.const(random_array(1, 4, 1, 1)))
        return relax.op.mean(relax.op.nn.relu(biased), [2, 3])

    mod, x = function_of([(tirx.Var("n", "int64"), 3, 5, 5)], body), random_array(2, 3, 5, 5)

    found = channels_last(mod)

    assert operators(found)["permute_dims"] == 1
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "output_padding"), [(2, 2, 0, 0), (4, 2, 1, 0), (3, 2, 1, 1), (5, 3, 0, 0)]
)
def test_a_transposed_convolution_is_a_convolution_by_phases(
    kernel: int, stride: int, padding: int, output_padding: int
) -> None:
    """No zeros are inserted; each output uses the weights of its phase."""

    def body(x: Expr, emit: Emit) -> Expr:
        from tvm import relax

        weights = relax.const(random_array(3, 4, kernel, kernel))
        options = {"strides": stride, "padding": padding, "output_padding": output_padding}
        return relax.op.mean(relax.op.nn.conv2d_transpose(x, weights, **options), [1])

    mod, x = function_of([(1, 3, 4, 5)], body), random_array(1, 3, 4, 5)

    found = channels_last(mod)

    assert not operators(found)["nn.conv2d_transpose"]
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)


def test_a_depthwise_kernel_of_tflite_gets_the_layout_of_all_others() -> None:
    """HWOI lies in memory as HWIO does; design spaces know one of them."""

    def body(x: Expr, _: Emit) -> Expr:
        from tvm import relax

        weights = relax.const(random_array(3, 3, 6, 1))
        return relax.op.nn.conv2d(x, weights, padding=1, groups=6, data_layout="NHWC", kernel_layout="HWOI")

    mod, x = function_of([(1, 5, 4, 6)], body), random_array(1, 5, 4, 6)

    found = channels_last(mod)

    call = found["main"].body.blocks[0].bindings[0].value
    assert (str(call.attrs.kernel_layout), [int(size) for size in call.args[1].ty.shape]) == ("HWIO", [3, 3, 1, 6])
    np.testing.assert_allclose(run(mod, x), run(found, x), rtol=1e-4, atol=1e-5)
