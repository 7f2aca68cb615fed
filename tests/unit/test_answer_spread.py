"""Tolerances of models' answers, by the error of float32 against float64, and errors that they must still detect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fleet.checking.numerics import InputStyle, answer_tolerances, make_inputs
from fleet.checking.spread import measure_spread
from fleet.models.float64 import evaluate_in_float64, widened
from fleet.models.model import Model, ModelFormat, load_model
from fleet.models.reference import reference_outputs
from fleet.runtime.agreement import agree, relative_errors
from tests.levit_like import write_levit_like

_TERMS = 2_000


def inputs_of(model: Model, seed: int) -> list[np.ndarray]:
    return [given for given in make_inputs(model.inputs, seed) if isinstance(given, np.ndarray)]


def convolution(path: Path, classes: int = 64) -> Path:
    """A model without float64 kernels in ONNX Runtime."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in {"kernel": (classes, 3, 3, 3), "bias": (classes,)}.items()
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "kernel", "bias"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("GlobalAveragePool", ["r"], ["scores"]),
        ],
        "convolution",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, classes, 1, 1])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.slow
def test_a_right_answer_that_float32_spreads_is_right(tmp_path: Path) -> None:
    """Before, a LeViT's answers of 1600 were called wrong for an error of 0.38; the bound by its sums is 0.14."""
    model = load_model(write_levit_like(tmp_path / "levit.onnx", blocks=6, sharpness=2.0))
    spread = measure_spread(model, 0, InputStyle.NORMAL, 8)
    assert spread is not None
    answers = []
    for seed in range(16):
        given = inputs_of(model, seed)
        narrow, wide = reference_outputs(model, given), evaluate_in_float64(model, given)
        assert narrow is not None
        assert wide is not None
        answers.append((narrow.outputs[0], wide[0].astype(np.float32)))
    engine, exact = max(answers, key=lambda pair: float(relative_errors(*pair).max()))

    by_sums = answer_tolerances([engine], terms=_TERMS, roundings=0, spread=None)
    by_float64 = answer_tolerances([engine], terms=_TERMS, roundings=0, spread=spread)

    assert np.abs(engine).max() > 100
    assert not agree([exact], [engine], by_sums).is_right
    assert agree([exact], [engine], by_float64).is_right


@pytest.mark.slow
@pytest.mark.parametrize("write", [write_levit_like, convolution])
def test_planted_errors_are_found(write: object, tmp_path: Path) -> None:
    """Errors of 1 % in one element, swapped elements, missing parts and sums in bfloat16 are detected."""
    model = load_model(write(tmp_path / "m.onnx"))  # type: ignore[operator]
    found = reference_outputs(model, inputs_of(model, 0))
    assert found is not None
    right = found.outputs[0]
    spread = measure_spread(model, 0, InputStyle.NORMAL, 8)
    tolerances = answer_tolerances([right], terms=_TERMS, roundings=0, spread=spread)
    one, swapped, cut = right.copy(), right.copy(), right.copy()
    largest = int(np.abs(right).argmax())
    one.flat[largest] *= 1.01
    swapped.flat[[0, 1]] = right.flat[[1, 0]]
    cut.flat[largest] = 0
    rough = (right.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)

    assert spread is not None
    assert agree([right.copy()], [right], tolerances).is_right
    for wrong in (one, swapped, cut, rough):
        assert not agree([wrong], [right], tolerances).is_right


def test_one_percent_is_too_much_whatever_float64_allows() -> None:
    """A wrong evaluation in float64 does not raise the tolerance above 1 %."""
    right = np.array([1600, -1200], np.float32)
    wrong = right * np.float32([1.01, 1])

    assert not agree([wrong], [right], answer_tolerances([right], terms=1, roundings=0, spread=(0.5,))).is_right


def test_quantized_models_keep_their_rule(tmp_path: Path) -> None:
    """Codes decide, not float64; integers must be equal regardless of the measured spread."""
    codes, floats = np.array([1, 2], np.int32), np.array([1, 2], np.float32)
    with_spread = answer_tolerances([codes, floats], terms=9, roundings=30, spread=(1.0, 1e-9))

    assert with_spread == answer_tolerances([codes, floats], terms=9, roundings=30, spread=None)


@pytest.mark.slow
def test_constants_types_and_scales_are_widened() -> None:
    """Casts, constants of all kinds and branches are widened. Scales of Resize stay in float32 by its definition."""
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["b"], value_float=0.1)],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Resize", ["x", "", "scales"], ["up"], mode="linear"),
            helper.make_node("Cast", ["up"], ["cast"], to=TensorProto.FLOAT),
            helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
            helper.make_node("Add", ["cast", "zeros"], ["sum"]),
            helper.make_node("If", ["condition"], ["third"], then_branch=branch, else_branch=branch),
            helper.make_node("Mul", ["sum", "third"], ["y"]),
        ],
        "m",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])],
        [
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
            numpy_helper.from_array(np.array([1], np.int64), "shape"),
            numpy_helper.from_array(np.array(True), "condition"),
        ],
    )
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = Model(
        title="m", format=ModelFormat.ONNX, digest="", input_names=("x",), inputs=(), output_names=("y",),
        stored=file.SerializeToString(),
    )  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, 1, 2, 2)).astype(np.float32)

    onnx.checker.check_model(widened(file))
    narrow, wide = reference_outputs(model, [x]), evaluate_in_float64(model, [x])

    assert narrow is not None
    assert wide is not None
    assert wide[0].dtype == np.float64
    np.testing.assert_allclose(narrow.outputs[0], wide[0], rtol=1e-5)
    assert not np.array_equal(wide[0], wide[0].astype(np.float32))
    assert evaluate_in_float64(replace(model, format=ModelFormat.TFLITE), [x]) is None
