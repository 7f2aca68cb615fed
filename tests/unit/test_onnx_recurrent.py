"""LSTM, GRU and RNN of ONNX files, which TVM's frontend does not know, beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from fleet.errors import ImportFailed
from fleet.models.model import import_model, load_model
from tests.unit.onnx_cases import Array, assert_same, loaded, model_of, ours

STEPS, BATCH, SIZE, HIDDEN = 4, 2, 3, 5
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": ["y", "y_h", "y_c"], "GRU": ["y", "y_h"], "RNN": ["y", "y_h"]}


def noise(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def recurrent(
    kind: str,
    *,
    optional: dict[int, str] | None = None,
    directions: int = 1,
    shape: tuple[int, ...] = (STEPS, BATCH, SIZE),
    **attributes: object,
) -> onnx.ModelProto:
    """A recurrent layer with biases; `optional` names further inputs by their place."""
    gates = GATES[kind]
    known = {
        "w": noise(directions, gates * HIDDEN, SIZE),
        "r": noise(directions, gates * HIDDEN, HIDDEN),
        "b": noise(directions, 2 * gates * HIDDEN),
        "lengths": np.array([2, 4], "int32"),
        "h0": noise(directions, BATCH, HIDDEN),
        "c0": noise(directions, BATCH, HIDDEN) / 2,
        "p": noise(directions, 3 * HIDDEN),
    }
    names = ["x", "w", "r", "b", *[""] * (max(optional or [3]) - 3)]
    for place, name in (optional or {}).items():
        names[place] = name
    node = helper.make_node(kind, names, OUTPUTS[kind], hidden_size=HIDDEN, **attributes)
    weights = {name: array for name, array in known.items() if name in names}
    return model_of([node], {"x": noise(*shape)}, weights, OUTPUTS[kind])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_every_direction_is_right(kind: str, direction: str, tmp_path: Path) -> None:
    """All outputs, with initial states and sequences of different lengths, are ONNX Runtime's."""
    directions = 2 if direction == "bidirectional" else 1
    states = {4: "lengths", 5: "h0", **({6: "c0"} if kind == "LSTM" else {})}
    proto = recurrent(kind, optional=states, directions=directions, direction=direction)

    assert_same(proto, {"x": noise(STEPS, BATCH, SIZE)}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "optional", "attributes"),
    [
        ("LSTM", {7: "p"}, {}),
        ("LSTM", {}, {"clip": 0.3}),
        ("LSTM", {}, {"input_forget": 1}),
        ("LSTM", {}, {"activations": ["HardSigmoid", "Softsign", "Relu"]}),
        ("GRU", {}, {}),
        ("GRU", {}, {"linear_before_reset": 1}),
        ("RNN", {}, {"activations": ["Relu"]}),
    ],
)
def test_every_variant_is_right(
    kind: str, optional: dict[int, str], attributes: dict[str, object], tmp_path: Path
) -> None:
    """Peepholes, clipping, coupled gates, other activations and both kinds of reset work."""
    assert_same(recurrent(kind, optional=optional, **attributes), {"x": noise(STEPS, BATCH, SIZE)}, tmp_path)


@pytest.mark.slow
def test_batch_first_is_the_same_transposed(tmp_path: Path) -> None:
    """With layout 1, which ONNX Runtime refuses, the batch comes first in inputs and outputs."""
    x = noise(STEPS, BATCH, SIZE)
    plain = ours(loaded(recurrent("LSTM"), tmp_path), [x])
    proto = recurrent("LSTM", shape=(BATCH, STEPS, SIZE), layout=1)

    batch_first = ours(loaded(proto, tmp_path), [x.transpose(1, 0, 2)])

    np.testing.assert_allclose(batch_first[0], plain[0].transpose(2, 0, 1, 3), rtol=1e-5)
    for state, expected in zip(batch_first[1:], plain[1:], strict=True):
        np.testing.assert_allclose(state, expected.transpose(1, 0, 2), rtol=1e-5)


def test_activation_with_parameters_is_refused_by_name(tmp_path: Path) -> None:
    """A refusal is better than wrong results."""
    onnx.save(recurrent("RNN", activations=["Elu"], activation_alpha=[0.5]), tmp_path / "m.onnx")

    with pytest.raises(ImportFailed, match=r"m: RNN \(node 'y'\) uses activations with parameters"):
        import_model(load_model(tmp_path / "m.onnx"))


def padded_encoder(stages: int, length: int) -> onnx.ModelProto:
    """Convolutions in front of an LSTM, with padding computed from the shape of their input, as in EnCodec."""
    shape = {"kernel": np.array(4.0, "float32"), "one": np.array(1.0, "float32"), "last": np.array([-1], "int64")}
    weights = {**shape, "zeros": np.zeros(5, "int64"), "conv": noise(SIZE, SIZE, 4)}
    nodes, x = [], "x"
    for stage in range(stages):
        steps = [
            ("Shape", [x], {}),
            ("Gather", ["{0}", "last"], {}),
            ("Cast", ["{1}"], {"to": onnx.TensorProto.FLOAT}),
            ("Sub", ["{2}", "kernel"], {}),
            ("Div", ["{3}", "kernel"], {}),
            ("Ceil", ["{4}"], {}),
            ("Add", ["{5}", "one"], {}),
            ("Mul", ["{6}", "kernel"], {}),
            ("Sub", ["{7}", "{2}"], {}),
            ("Cast", ["{8}"], {"to": onnx.TensorProto.INT64}),
            ("Concat", ["zeros", "{9}"], {"axis": 0}),
            ("Pad", [x, "{10}"], {"mode": "reflect"}),
            ("Conv", ["{11}", "conv"], {"kernel_shape": [4], "strides": [4]}),
        ]
        names = [f"stage{stage}_{place}" for place in range(len(steps))]
        nodes += [
            helper.make_node(kind, [name.format(*names) for name in inputs], [made], **attributes)
            for (kind, inputs, attributes), made in zip(steps, names, strict=True)
        ]
        x = names[-1]
    nodes.append(helper.make_node("Transpose", [x], ["rows"], perm=[2, 0, 1]))
    nodes.append(helper.make_node("LSTM", ["rows", "w", "r"], ["y"], hidden_size=HIDDEN))
    weights |= {"w": noise(1, 4 * HIDDEN, SIZE), "r": noise(1, 4 * HIDDEN, HIDDEN)}
    return model_of(nodes, {"x": noise(1, SIZE, length)}, weights)


@pytest.mark.slow
def test_shapes_are_found_behind_paddings_that_are_computed(tmp_path: Path) -> None:
    """Each padding hides the shapes after it until it is a constant; before, the length of the LSTM was unknown."""
    assert_same(padded_encoder(3, 250), {"x": noise(1, SIZE, 250)}, tmp_path)


def test_an_unknown_length_is_traced_to_its_cause(tmp_path: Path) -> None:
    """The number of nonzero elements is known only at run time, and fixing input shapes would not help."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], name="find"),
        helper.make_node("Cast", ["places"], ["numbers"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Transpose", ["numbers"], ["turned"]),
        helper.make_node("Unsqueeze", ["turned", "axes"], ["rows"]),
        helper.make_node("LSTM", ["rows", "w", "r"], ["y"], hidden_size=HIDDEN),
    ]
    weights = {"axes": np.array([1]), "w": noise(1, 4 * HIDDEN, 1), "r": noise(1, 4 * HIDDEN, HIDDEN)}
    onnx.save(model_of(nodes, {"x": noise(STEPS)}, weights), tmp_path / "m.onnx")

    with pytest.raises(
        ImportFailed, match=r"sequence length is unknown: the shape of 'places' .* NonZero \(node 'find"
    ):
        import_model(load_model(tmp_path / "m.onnx"))
