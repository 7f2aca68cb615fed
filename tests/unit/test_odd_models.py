"""Small models of rare shapes, types and operators on their whole way, as users get them, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from fleet.graph.pipeline import lower
from fleet.models.model import Model, import_model
from fleet.workloads.applying import apply_schedules
from fleet.workloads.concats import join_concats
from tests.unit.graph_models import TARGET
from tests.unit.onnx_cases import Array, loaded, model_of, theirs
from tests.unit.quick_compile import compile_quickly

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Case(NamedTuple):
    """A model with its inputs and weights."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Mapping[str, Array]
    weights: Mapping[str, Array]
    outputs: Sequence[str] = ("y",)


def noise(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def number(value: float, dtype: str = "float32") -> Array:
    return np.array(value, dtype)


def node(op_type: str, inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), output.split(), **attributes)


CASES = {
    "a single number minus and divided by another": Case(
        [node("Sub", "x c", "d"), node("Div", "d c")], {"x": number(3)}, {"c": number(2)}
    ),
    "the larger of two single numbers": Case([node("Max", "x c")], {"x": number(3)}, {"c": number(4)}),
    "the mean of everything": Case([node("ReduceMean", "x", keepdims=0)], {"x": noise(7, 11, 5)}, {}),
    "the mean of all squares": Case(
        [node("Sub", "a b", "d"), node("Mul", "d d", "q"), node("ReduceMean", "q", keepdims=0)],
        {"a": noise(3, 40), "b": noise(40)},
        {},
    ),
    "a square that repeats its base": Case([node("Pow", "x e")], {"x": noise(3, 1)}, {"e": np.full((1, 4), 2, "f")}),
    "a product of float64": Case(
        [node("MatMul", "x w")], {"x": noise(5, 7, dtype="float64")}, {"w": noise(7, 32, dtype="float64")}
    ),
    "a product of int64": Case(
        [node("MatMul", "x w")], {"x": np.arange(12).reshape(3, 4)}, {"w": np.arange(64).reshape(4, 16) + 2**33}
    ),
    "sums beyond 32 bits": Case(
        [node("Add", "x a", "s"), node("Add", "s b")],
        {"x": np.arange(12).reshape(3, 4)},
        {"a": np.full(4, 2**40), "b": np.full(4, 2**41)},
    ),
    "a division by what has no reciprocal": Case(
        [node("Div", "x c")], {"x": np.array([0, 1e-6, 2e-5], "float16")}, {"c": number(1e-5, "float16")}
    ),
    "a part of what is concatenated": Case(
        [
            node("Tanh", "x", "t"),
            node("Neg", "x", "n"),
            node("Split", "t s", "y z", axis=1),
            node("Concat", "n t", "v", axis=2),
        ],
        {"x": noise(4, 8, 6)},
        {"s": np.array([3, 5])},
        ("y", "z", "v"),
    ),
    "scattered elements": Case(
        [node("ScatterElements", "x i u", axis=1)],
        {"x": noise(2, 3), "i": np.array([[-1], [0]]), "u": noise(2, 1)},
        {},
    ),
    "powers of whole numbers": Case(
        [node("Pow", "x e"), node("Pow", "x x", "z")],
        {"x": np.array([1, 4, 9], "int32")},
        {"e": number(0.5)},
        ("y", "z"),
    ),
    "squares of whole numbers that repeat their base": Case(
        [node("Pow", "x e")], {"x": np.array([2, 3], "int32")}, {"e": np.full((3, 1, 2), 2, "int32")}
    ),
    "one of several": Case(
        [node("OneHot", "i d v", axis=1)],
        {"i": np.array([[0, 3, -1], [2, 4, 1]])},
        {"d": number(4, "int64"), "v": np.array([-1, 2], "float32")},
    ),
    "nothing in front of something": Case(
        [
            node("Slice", "x zero zero", "n"),
            node("Concat", "n x n", axis=0),
            node("Split", "x s", "a b", axis=1),
            node("Neg", "b", "z"),
        ],
        {"x": noise(4, 7)},
        {"zero": np.array([0]), "s": np.array([0, 7])},
        ("y", "z", "a"),
    ),
    "hyperbolic functions": Case(
        [node("Sinh", "x"), node("Cosh", "x", "z")], {"x": noise(3, 32) * np.float32(1e-3)}, {}, ("y", "z")
    ),
    "a function of a condition": Case(
        [node("Greater", "x c", "g"), node("Cast", "g", "f", to=TensorProto.FLOAT), node("Sigmoid", "f")],
        {"x": noise(3, 32)},
        {"c": number(0.3)},
    ),
    "a function of a condition as a whole number": Case(
        [
            node("Greater", "x c", "g"),
            node("Cast", "g", "i", to=TensorProto.INT64),
            node("Cast", "i", "f", to=TensorProto.FLOAT),
            node("Sigmoid", "f"),
        ],
        {"x": noise(3, 32)},
        {"c": number(0.3)},
    ),
    "large numbers behind each other, if they are positive": Case(
        [
            node("Neg", "x", "n"),
            node("Concat", "x n c", "v", axis=3),
            node("Greater", "v z", "g"),
            node("Where", "g v o"),
        ],
        {"x": np.arange(128).reshape(1, 8, 8, 2) - 5},
        {"c": np.ones((1, 8, 8, 1), "int64"), "z": number(0, "int64"), "o": number(1, "int64")},
    ),
    "a larger image whose channels are shuffled": Case(
        [
            node("Relu", "x", "r"),
            helper.make_node("Resize", ["r", "", "", "z"], ["b"], mode="nearest"),
            node("Reshape", "b s", "p"),
            node("Transpose", "p", "q", perm=[0, 2, 1, 3, 4]),
            node("Reshape", "q z"),
        ],
        {"x": noise(1, 8, 7, 7)},
        {"z": np.array([1, 8, 21, 21]), "s": np.array([1, 2, 4, 21, 21])},
    ),
    "inputs and constants as outputs": Case(
        [node("Relu", "x"), node("Identity", "x", "z"), node("Identity", "w", "v")],
        {"x": noise(2, 3)},
        {"w": noise(4)},
        ("y", "z", "v"),
    ),
}


def scheduled_outputs(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a model with static schedules, its concats in place."""
    import tvm
    from tvm import relax

    applied = apply_schedules(lower(import_model(model), TARGET), TARGET, {})
    machine = relax.VirtualMachine(compile_quickly(join_concats(applied.mod, TARGET).mod), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return [item.numpy() for item in (result if len(model.output_names) > 1 else [result])]


@pytest.mark.parametrize("name", CASES)
def test_rare_models_answer_as_onnx_runtime(name: str, tmp_path: Path) -> None:
    """Shape, type and numbers stay the same through all passes and schedules."""
    case = CASES[name]
    model = loaded(model_of(case.nodes, case.inputs, case.weights, case.outputs), tmp_path)
    arrays = [case.inputs[given] for given in model.input_names]

    for expected, actual in zip(theirs(model, arrays), scheduled_outputs(model, arrays), strict=True):
        assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
        exact = 1e-12 if expected.dtype == np.float64 else 1e-5
        np.testing.assert_allclose(actual, expected, rtol=1e-3 if expected.dtype == np.float16 else exact, atol=1e-9)
