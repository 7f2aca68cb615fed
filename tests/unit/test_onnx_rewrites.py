"""Operators that TVM's ONNX frontend lacks or gets wrong, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fleet.errors import ImportFailed
from fleet.models.onnx_rewrites.prepare import prepared
from tests.unit.onnx_cases import Array, assert_same, loaded, model_of, ours


def noise(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype("float32")


def codes(*shape: int) -> Array:
    return np.random.default_rng(1).integers(0, 255, shape).astype("uint8")


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Sum", "Mean", "Max", "Min"])
def test_operators_of_many_inputs(case: str, tmp_path: Path) -> None:
    """Three inputs of different shapes are broadcast."""
    inputs = {"a": noise(2, 3, 4), "b": noise(3, 1), "c": noise(4)}

    assert_same(model_of([helper.make_node(case, list("abc"), ["y"])], inputs), inputs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", [{"lo": 0.0, "hi": 0.5}, {"lo": -0.5}, {"hi": 0.25}])
def test_bounds_that_are_constant_need_no_look_for_nan(bounds: dict[str, float], tmp_path: Path) -> None:
    """ReLU6 becomes two operators that are fused with the operators before them."""
    inputs = {"x": noise(2, 3, 4)}
    node = helper.make_node("Clip", ["x", *(name if name in bounds else "" for name in ("lo", "hi"))], ["y"])
    proto = model_of([node], inputs, {name: np.array(value, "float32") for name, value in bounds.items()})

    assert "Clip" not in operators(prepared(proto))
    assert_same(proto, inputs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_normalisation_leaves_zeros_zero(order: int, tmp_path: Path) -> None:
    """A row of zeros has no direction and stays zero."""
    x = noise(3, 4)
    x[1] = 0

    assert_same(
        model_of([helper.make_node("LpNormalization", ["x"], ["y"], p=order, axis=1)], {"x": x}), {"x": x}, tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize(("time_axis", "batch_axis"), [(0, 1), (1, 0)])
def test_sequences_are_reversed_up_to_their_length(time_axis: int, batch_axis: int, tmp_path: Path) -> None:
    """Elements beyond a sequence's end stay in place."""
    inputs = {"x": noise(4, 4, 2)}
    node = helper.make_node("ReverseSequence", ["x", "n"], ["y"], time_axis=time_axis, batch_axis=batch_axis)

    assert_same(model_of([node], inputs, {"n": np.array([4, 1, 2, 3], "int64")}), inputs, tmp_path)


@pytest.mark.slow
def test_expand_keeps_larger_dimensions(tmp_path: Path) -> None:
    """A 1 in the wanted shape keeps the input's size; TVM alone makes it 1."""
    inputs = {"x": noise(3, 1)}

    assert_same(
        model_of([helper.make_node("Expand", ["x", "s"], ["y"])], inputs, {"s": np.array([2, 1, 6])}), inputs, tmp_path
    )


@pytest.mark.slow
def test_powers_of_mixed_types(tmp_path: Path) -> None:
    """The exponent takes the type of the base."""
    inputs = {"x": np.abs(noise(2, 3))}

    assert_same(
        model_of([helper.make_node("Pow", ["x", "e"], ["y"])], inputs, {"e": np.array([2, 3, 1], "int64")}),
        inputs,
        tmp_path,
    )


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_isinf_distinguishes_the_sign(sign: str, tmp_path: Path) -> None:
    """Only the requested infinity counts."""
    inputs = {"x": np.array([np.inf, -np.inf, 1, np.nan], "float32")}
    node = helper.make_node("IsInf", ["x"], ["y"], **{f"detect_{sign}": 0})

    assert_same(model_of([node], inputs, opset=10), inputs, tmp_path)


@pytest.mark.slow
def test_quantized_operators(tmp_path: Path) -> None:
    """QLinearConv with a bias, and QLinearMatMul, come within one code of ONNX Runtime; here they are the same."""
    scales = {name: np.array(value, "float32") for name, value in (("xs", 0.02), ("ws", 0.01), ("ys", 0.4))}
    zeros = {"xz": np.array(120, "uint8"), "wz": np.array(128, "uint8"), "yz": np.array(100, "uint8")}
    weights = {**scales, **zeros, "w": codes(4, 3, 3, 3), "b": np.array([5, -7, 100, 0], "int32"), "m": codes(6, 4)}
    names = ["xs", "xz", "w", "ws", "wz", "ys", "yz"]
    nodes = [
        helper.make_node("QLinearConv", ["x", *names, "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("QLinearMatMul", ["c", "xs", "xz", "m", "ws", "wz", "ys", "yz"], ["y"]),
    ]
    inputs = {"x": codes(1, 3, 6, 6)}

    assert_same(model_of(nodes, inputs, weights), inputs, tmp_path)


@pytest.mark.slow
def test_integer_convolution(tmp_path: Path) -> None:
    """Sums of products of bytes are exact."""
    inputs = {"x": codes(1, 3, 6, 6)}
    weights = {"w": codes(4, 3, 3, 3), "xz": np.array(3, "uint8"), "wz": np.array(128, "uint8")}
    node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], pads=[1, 1, 1, 1])

    assert_same(model_of([node], inputs, weights), inputs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("op_type", ["Celu", "Swish"])
def test_functions_of_the_specification(op_type: str, tmp_path: Path) -> None:
    """Functions that ONNX defines by other operators are imported as those operators."""
    inputs = {"x": noise(2, 3)}
    proto = model_of([helper.make_node(op_type, ["x"], ["y"])], inputs, opset=24)

    assert op_type not in operators(prepared(proto))
    if op_type == "Celu":
        assert_same(proto, inputs, tmp_path)


@pytest.mark.slow
def test_functions_of_the_model_are_inlined(tmp_path: Path) -> None:
    """A layer may be a function in the file, as written by torch.onnx."""
    inputs = {"x": noise(2, 3)}
    proto = model_of([helper.make_node("Relu", ["x"], ["y"])], inputs)
    body = [helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "Squared", ["a"], ["c"], body, opsets))
    proto.graph.node[0].CopyFrom(helper.make_node("Squared", ["x"], ["y"], domain="own"))
    proto.opset_import.append(helper.make_opsetid("own", 1))

    assert_same(proto, inputs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("strides", [[2, 2], [3, 1]])
def test_a_pool_that_is_padded_at_the_beginning(strides: list[int], tmp_path: Path) -> None:
    """Before, the result of SAME_LOWER had a row less."""
    inputs = {"x": noise(1, 2, 5, 6)}
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=strides, auto_pad="SAME_LOWER")

    assert_same(model_of([node], inputs), inputs, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("auto_pad", ["NOTSET", "SAME_UPPER"])
@pytest.mark.parametrize("shape", [[10, 12], [9, 11], [13, 15]])
def test_a_transposed_convolution_of_a_wanted_size(shape: list[int], auto_pad: str, tmp_path: Path) -> None:
    """The excess is cut off, half of it on each side and the odd element on one of them; missing elements are zeros."""
    inputs = {"x": noise(1, 2, 5, 6)}
    how = {"strides": [2, 2], "output_shape": shape, "auto_pad": auto_pad}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **how)

    assert_same(model_of([node], inputs, {"w": noise(2, 3, 4, 4)}), inputs, tmp_path)


def test_arithmetic_on_shapes_is_done_before_import() -> None:
    """Arithmetic on known shapes, as exporters write it, becomes a constant."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Constant", [], ["axes"], value_ints=[0]),
        helper.make_node("Unsqueeze", ["rows", "axes"], ["rows_1d"]),
        helper.make_node("Constant", [], ["rest"], value_ints=[-1]),
        helper.make_node("Concat", ["rows_1d", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]

    proto = prepared(model_of(nodes, {"x": noise(2, 3, 4)}))

    assert ["Reshape"] == operators(proto)
    assert [[2, -1]] == [onnx.numpy_helper.to_array(tensor).tolist() for tensor in proto.graph.initializer]


def test_random_and_large_nodes_are_not_folded() -> None:
    """Random numbers are drawn at run time; a table of 64 MiB is not written into the file."""
    nodes = [
        helper.make_node("RandomNormal", [], ["r"], shape=[2, 3], dtype=TensorProto.FLOAT),
        helper.make_node("Constant", [], ["size"], value_ints=[4096, 4096]),
        helper.make_node("ConstantOfShape", ["size"], ["table"]),
        helper.make_node("Add", ["x", "r"], ["y"]),
        helper.make_node("ReduceSum", ["table"], ["z"]),
    ]

    found = operators(prepared(model_of(nodes, {"x": noise(2, 3)}, outputs=("y", "z"))))

    assert {"RandomNormal", "ConstantOfShape"} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_whether_any_or_all_are_true(op_type: str, tmp_path: Path) -> None:
    """ReduceMax and ReduceMin of booleans, allowed since opset 20, are "any" and "all"."""
    x = noise(3, 4) > 0.5
    proto = model_of([helper.make_node(op_type, ["x", "a"], ["y"])], {"x": x}, {"a": np.array([1])}, opset=20)
    (found,) = ours(loaded(proto, tmp_path), [x])

    assert found.dtype == np.bool_
    np.testing.assert_array_equal(found, (x.any if op_type == "ReduceMax" else x.all)(1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_norm_that_tells_its_mean(dtype: str, axis: int, tmp_path: Path) -> None:
    """The outputs for training have the input's rank; TVM had no operator for float64 at all."""
    inputs = {"x": noise(2, 3, 4).astype(dtype)}
    size = (3, 4) if axis == 1 else (4,)
    weights = {"s": noise(*size).astype(dtype), "b": noise(*size).astype(dtype)}
    outputs = ["y", "mean", "deviation"] if dtype == "float32" else ["y"]
    node = helper.make_node("LayerNormalization", ["x", "s", "b"], outputs, axis=axis, epsilon=1e-3)

    assert_same(model_of([node], inputs, weights, outputs), inputs, tmp_path)


@pytest.mark.slow
def test_a_dropout_mask_is_all_true(tmp_path: Path) -> None:
    """No element is dropped, and the mask is boolean."""
    inputs = {"x": noise(3, 4)}

    assert_same(model_of([helper.make_node("Dropout", ["x"], ["y", "m"])], inputs, None, ["y", "m"]), inputs, tmp_path)


def test_batch_norm_in_training_mode_is_refused() -> None:
    """Its running mean would change with the input."""
    inputs = {"x": noise(2, 3, 4)}
    weights = {name: np.abs(noise(3)) for name in "sbmv"}
    node = helper.make_node("BatchNormalization", ["x", *"sbmv"], ["y", "rm", "rv"], name="bn", training_mode=1)

    with pytest.raises(ImportFailed, match=r"BatchNormalization \(node 'bn'\) is still in training"):
        prepared(model_of([node], inputs, weights, ["y", "rm", "rv"]))


def test_dropout_in_training_mode_is_refused() -> None:
    """A dropout in training drops random numbers; with a share of zero it behaves as outside of training."""
    inputs = {"x": noise(3, 4)}
    node = helper.make_node("Dropout", ["x", "share", "trains"], ["y"], name="drop")

    def rewritten(**weights: float) -> list[str]:
        constants = {
            name: np.array(value, np.bool_ if name == "trains" else "float32") for name, value in weights.items()
        }
        left = {name: np.array(True) for name in {"trains"} - set(weights)}
        return operators(prepared(model_of([node], {**inputs, **left}, constants)))

    assert rewritten(share=0.5, trains=False) == rewritten(share=0.0, trains=True) == ["Identity"]
    for weights in ({"share": 0.5, "trains": True}, {"share": 0.5}):
        with pytest.raises(ImportFailed, match=r"Dropout \(node 'drop'\) is still in training"):
            rewritten(**weights)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"overlap": 0.0}, {"overlap": 0.5}, {"overlap": 0.5, "score": 0.2}])
def test_boxes_are_suppressed_within_the_limits_that_are_given(limits: dict[str, float], tmp_path: Path) -> None:
    """A missing limit of the overlap means 0, and a missing limit of the score means none, for scores below 0, too."""
    corners = np.sort(np.random.default_rng(0).random((1, 12, 2, 2), dtype="float32"), axis=2)
    inputs = {"boxes": corners.reshape(1, 12, 4), "scores": noise(1, 2, 12)}
    constants = {"count": np.array(3), **{name: np.array(value, "float32") for name, value in limits.items()}}
    named = ["boxes", "scores", *(name if name in constants else "" for name in ("count", "overlap", "score"))]

    assert_same(model_of([helper.make_node("NonMaxSuppression", named, ["y"])], inputs, constants), inputs, tmp_path)


def test_the_largest_of_a_region_is_refused() -> None:
    """ONNX takes the largest weighted element, TVM the largest weighted sum."""
    inputs = {"x": noise(1, 1, 8, 8), "rois": noise(2, 4), "batch": np.zeros(2, "int64")}
    node = helper.make_node("RoiAlign", list(inputs), ["y"], name="roi", mode="max")

    with pytest.raises(ImportFailed, match=r"RoiAlign \(node 'roi'\) has mode 'max'"):
        prepared(model_of([node], inputs))


def test_limits_that_come_with_the_data_are_refused() -> None:
    """TVM takes the default of a limit that is not constant, without a word."""
    inputs = {"boxes": noise(1, 6, 4), "scores": noise(1, 1, 6), "limit": np.array([0.5], "float32")}
    names = ["boxes", "scores", "", "", "limit"]
    proto = model_of([helper.make_node("NonMaxSuppression", names, ["y"], name="nms")], inputs)

    with pytest.raises(ImportFailed, match="limits that are not constant: limit"):
        prepared(proto)


@pytest.mark.slow
def test_blocks_become_channels_in_either_order(tmp_path: Path) -> None:
    """Either a channel's block or a place of the blocks is contiguous."""
    x = np.arange(48, dtype="float32").reshape(1, 2, 4, 6)
    blocks = x.reshape(1, 2, 2, 2, 3, 2)
    expected = {"CRD": blocks.transpose(0, 1, 3, 5, 2, 4), "DCR": blocks.transpose(0, 3, 5, 1, 2, 4)}

    for mode, wanted in expected.items():
        node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode=mode)
        newest = onnx.defs.get_schema("SpaceToDepth").since_version
        (found,) = ours(loaded(model_of([node], {"x": x}, opset=newest), tmp_path), [x])
        np.testing.assert_array_equal(found, wanted.reshape(1, 8, 2, 3))
