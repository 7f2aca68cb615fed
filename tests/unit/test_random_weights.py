"""Random weights keep models sensitive to wrong kernels, and activations ordinary numbers that take no extra time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fleet.errors import NotFound
from fleet.models.model import bundled_model, load_model
from fleet.models.node_by_node import Array, NodeByNode, example_inputs
from fleet.models.random_weights import randomize_weights
from fleet.testing.models import GENERATED, HELD_OUT, build, write

BUNDLED = ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121", "resnet50")
"""Models of the onnx package; alexnet, vgg19 and zfnet512 have 60 to 140 million weights, half a minute of drawing."""

LEAST_RMS, LARGEST_RMS = 1e-4, 1e3
SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)
MASKED = 1e30
NUDGE = 1e-4


@pytest.fixture(scope="module", params=[*GENERATED, *BUNDLED])
def proto(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """One model after the other, built once for all tests."""
    name = str(request.param)
    if name in GENERATED:
        return build(name)
    return onnx.load_from_string(load_model(bundled_model(name), random_weights_seed=0).onnx_bytes)


def answers(proto: onnx.ModelProto, *questions: Mapping[str, Array]) -> list[Array]:
    """Return the model's first output for each set of inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(inputs))[0].astype(np.float64) for inputs in questions]


def relative_change(changed: Array, output: Array) -> float:
    return float(np.linalg.norm(changed.astype(np.float64) - output) / np.linalg.norm(output.astype(np.float64)))


@pytest.mark.slow
def test_outputs_follow_the_input_and_not_the_rounding(proto: onnx.ModelProto) -> None:
    """Another input changes a model's answer by more than any tolerance, and a small error stays a small one."""
    first, second = (example_inputs(proto, np.random.default_rng(seed)) for seed in (5, 6))
    noise = np.random.default_rng(7)
    nudged = {
        key: (value * (1 + NUDGE * noise.standard_normal(value.shape))).astype(value.dtype)
        for key, value in first.items()
        if value.dtype.kind == "f"
    }

    output, other, near = answers(proto, first, second, {**first, **nudged})

    assert relative_change(other, output) > 1e-2
    if proto.graph.name != "resnet18_int8":  # there an error is a step of its rounding, or nothing
        assert relative_change(near, output) < 100 * NUDGE


@pytest.mark.slow
def test_activations_are_ordinary_numbers(proto: onnx.ModelProto) -> None:
    """No activation vanishes, explodes, or becomes one of the slow denormal numbers."""
    steps = NodeByNode(proto, example_inputs(proto, np.random.default_rng(5)))
    read = {name for node in proto.graph.node for name in node.input} | {value.name for value in proto.graph.output}

    for index, node in enumerate(proto.graph.node):
        for made, value in steps.outputs_of(node).items():
            if made in read and value.dtype.kind == "f" and value.size > 1:
                seen = np.abs(value[np.abs(value) < MASKED].astype(np.float64))
                assert np.isfinite(value).all(), made
                assert not ((seen > 0) & (seen < SMALLEST_NORMAL)).any(), made
                assert LEAST_RMS < np.sqrt(np.mean(seen**2)) < LARGEST_RMS, made
        steps.advance(index)


def test_masks_and_tables_are_not_randomized() -> None:
    """A causal mask and a table of cosines survive; a bias and a factor per channel beside them do not."""
    arrays = {
        "mask": np.array([[0, -3.4e38], [0, 0]], np.float32),
        "bias": np.zeros(2, np.float32),
        "cosines": np.ones((2, 2), np.float32),
        "factor": np.ones(2, np.float32),
    }
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["a"]),
        helper.make_node("Add", ["a", "bias"], ["b"]),
        helper.make_node("Mul", ["b", "cosines"], ["c"]),
        helper.make_node("Mul", ["c", "factor"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy"]
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "graph", values[:1], values[1:], stored),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )

    assert randomize_weights(proto, 0) == 2

    kept = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    changed = {name for name, array in arrays.items() if not np.array_equal(kept[name], array)}
    assert changed == {"bias", "factor"}


def test_unknown_operators_do_not_stop_randomization(caplog: pytest.LogCaptureFixture) -> None:
    """Weights behind an unknown operator are drawn without its data, and the log says so."""
    nodes = [
        helper.make_node("Secret", ["x"], ["s"], domain="somebody"),
        helper.make_node("MatMul", ["s", "w"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64]) for name in "xy"]
    weight = numpy_helper.from_array(np.zeros((64, 64), np.float32), "w")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("somebody", 1)]
    graph = helper.make_graph(nodes, "graph", values[:1], values[1:], [weight])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)

    assert randomize_weights(proto, 0) == 1

    assert "do not follow the data" in caplog.text
    assert numpy_helper.to_array(proto.graph.initializer[0]).std() == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.slow
def test_generated_models_are_the_same_every_time(tmp_path: Path) -> None:
    """Figures of different days are about the same model, byte for byte, under any file name."""
    paths = [write("keyword_spotting", tmp_path / to) for to in ("folder", "model.onnx")]

    assert paths == [tmp_path / "folder/keyword_spotting.onnx", tmp_path / "model.onnx"]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert load_model(paths[0]).input_names == ("cepstra",)


def test_unknown_generated_models_are_refused() -> None:
    """The error suggests the nearest name."""
    with pytest.raises(NotFound, match="did you mean 'resnet18'"):
        build("resnet1")
    assert set(HELD_OUT) < set(GENERATED)
