"""Reading ONNX files: shapes, weights, and faults of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fleet.checking.weakness import Weakness, find_weakness
from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed, InvalidRequest, NotFound
from fleet.models.importing.packages import require
from fleet.models.model import bundled_model, load_model
from fleet.models.random_weights import randomize_weights


def save(tmp_path: Path, nodes: list[Any], inputs: list[Any], initializers: list[Any] | None = None) -> Path:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", inputs, [output], initializers or [])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def save_relu(tmp_path: Path, shape: list[int | str | None]) -> Path:
    return save(
        tmp_path,
        [helper.make_node("Relu", ["image"], ["y"])],
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
    )


def test_inputs_are_read_from_the_graph(tmp_path: Path) -> None:
    """Names, shapes and types of the inputs come out; weights are no inputs."""
    weight = numpy_helper.from_array(np.ones((4, 4), "float32"), "w")
    listed = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4]),
    ]
    model = load_model(save(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], listed, [weight]))

    assert model.input_names == ("x",)
    assert (TensorSpec((2, 4), "float32"),) == model.inputs
    assert model.title == "model"


def test_symbolic_shape_is_named_with_the_way_out(tmp_path: Path) -> None:
    """The error says which dimensions of which input are unknown, and the flag that sets them."""
    path = save_relu(tmp_path, ["batch", 3, None, 8])

    with pytest.raises(
        ImportFailed, match=r"'image' has dimension 0 = batch, dimension 2 = \?.*--shape image=1,3,224,8"
    ):
        load_model(path)


def test_an_input_of_strings_is_named(tmp_path: Path) -> None:
    """TVM's own error was "unknown dtype", without the input."""
    words = helper.make_tensor_value_info("words", TensorProto.STRING, [3])
    path = save(tmp_path, [helper.make_node("StringNormalizer", ["words"], ["y"])], [words])

    with pytest.raises(ImportFailed, match="input 'words' holds strings"):
        load_model(path)


def test_given_shape_makes_the_model_static(tmp_path: Path) -> None:
    """A shape for the symbolic input becomes part of the model, in its bytes, too."""
    path = save_relu(tmp_path, ["batch", 3])
    model = load_model(path, shapes={"image": (5, 3)})

    dims = onnx.load_from_string(model.onnx_bytes).graph.input[0].type.tensor_type.shape.dim
    assert (TensorSpec((5, 3), "float32"),) == model.inputs
    assert [dim.dim_value for dim in dims] == [5, 3]
    assert model.digest != load_model(path, shapes={"image": (6, 3)}).digest


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"imag": (1, 3)}, "no input 'imag'; did you mean 'image'"),
        ({"image": (1, 3, 1)}, "has 2 dimensions, the shape .* has 3"),
        ({"image": (1, 4)}, "dimension 1 of input 'image' is 3 in the model, not 4"),
        ({"image": (0, 3)}, "dimension below 1"),
    ],
)
def test_shape_that_does_not_fit_is_refused(tmp_path: Path, shapes: dict[str, tuple[int, ...]], said: str) -> None:
    """A shape for the wrong input or of the wrong kind is the caller's mistake; the error names a valid one."""
    with pytest.raises(InvalidRequest, match=said):
        load_model(save_relu(tmp_path, ["batch", 3]), shapes=shapes)


@pytest.mark.parametrize("content", [b"", b"this is no model", b"\x00" * 100, b"\x08\x07"])
def test_file_that_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    """For any contents of the file, the error names the file and says that it is no ONNX model."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)

    with pytest.raises(ImportFailed, match=r"broken\.onnx is no ONNX model"):
        load_model(path)


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    """The error has the reason why the path cannot be read."""
    with pytest.raises(ImportFailed, match="No such file"):
        load_model(tmp_path / "missing.onnx")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(ImportFailed, match="directory"):
        load_model(tmp_path / "folder.onnx")


def test_unknown_type_names_the_known_ones(tmp_path: Path) -> None:
    """A file of another framework is refused by its name, before anything is read."""
    with pytest.raises(ImportFailed, match=r"model\.pb is of no known type; known: \*\.onnx, \*\.pt2"):
        load_model(tmp_path / "model.pb")


def test_missing_package_names_its_extra() -> None:
    """The error for a missing package has the command that installs it."""
    with pytest.raises(ImportFailed, match=r"needs the package tflite.*; .* pip install 'tvm-fleet\[tflite\]'"):
        require("tflite.nothing_there", "a TFLite model")


def test_bundled_models_are_found_by_name() -> None:
    """The models of the onnx package go by their short names."""
    assert bundled_model("squeezenet").is_file()
    with pytest.raises(NotFound, match="did you mean 'squeezenet'"):
        bundled_model("squeezenett")


def test_random_weights_are_seeded() -> None:
    """The same seed gives the same model; another seed another one; no seed the file's own weights."""
    path = bundled_model("squeezenet")

    digests = [load_model(path, random_weights_seed=seed).digest for seed in (0, 0, 1, None)]

    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_all_weights_of_a_bundled_model_become_random() -> None:
    """No float constant with more than one element stays constant, whether stored or filled by a node."""
    proto = onnx.load_from_string(load_model(bundled_model("squeezenet"), random_weights_seed=0).onnx_bytes)

    arrays = [numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    assert all(np.unique(array).size > 1 for array in arrays if array.dtype.kind == "f" and array.size > 1)
    assert not [node for node in proto.graph.node if node.op_type == "ConstantOfShape"]


def test_other_initializers_are_kept(tmp_path: Path) -> None:
    """Shapes, scalars and constants of other operators are not touched."""
    shape = numpy_helper.from_array(np.array([4, 2], "int64"), "shape")
    scalar = numpy_helper.from_array(np.array([3.0], "float32"), "scalar")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["z"]), helper.make_node("Mul", ["z", "scalar"], ["y"])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    proto = onnx.load(save(tmp_path, nodes, inputs, [shape, scalar]))

    assert randomize_weights(proto, 0) == 0
    assert [numpy_helper.to_array(tensor).tolist() for tensor in proto.graph.initializer] == [[4, 2], [3.0]]


def test_random_weights_keep_the_scale_of_activations(tmp_path: Path) -> None:
    """Through twenty convolutions and rectifiers, values stay within a factor of ten."""
    import onnxruntime

    nodes, weights, name = [], [], "x"
    for layer in range(20):
        weights.append(numpy_helper.from_array(np.full((16, 16, 3, 3), 0.02, "float32"), f"w{layer}"))
        last = "y" if layer == 19 else f"r{layer}"
        nodes += [
            helper.make_node("Conv", [name, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{layer}"], [last]),
        ]
        name = last
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 16, 16])]
    model = load_model(save(tmp_path, nodes, inputs, weights), random_weights_seed=0)
    session = onnxruntime.InferenceSession(model.onnx_bytes)

    image = np.random.default_rng(0).standard_normal((1, 16, 16, 16)).astype("float32")
    output = session.run(None, {"x": image})[0]

    assert 0.1 < float(np.sqrt(np.mean(output**2))) < 10


def inverted_residuals(blocks: int = 17) -> onnx.ModelProto:
    """A small MobileNetV2, initialized as before training: its outputs are close to zero."""
    rng = np.random.default_rng(0)
    nodes, weights = [], [numpy_helper.from_array(np.array(x, "float32"), n) for n, x in (("lo", 0), ("hi", 6))]

    def conv(given: str, made: str, shape: tuple[int, ...], *, clips: bool = True) -> str:
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) * 0.02).astype("float32"), f"{made}_w"))
        for part, value in (("scale", 1), ("offset", 0), ("mean", 0), ("var", 1)):
            weights.append(numpy_helper.from_array(np.full(shape[0], value, "float32"), f"{made}_{part}"))
        norm = [f"{made}_{part}" for part in ("conv", "scale", "offset", "mean", "var")]
        group = shape[0] if shape[1] == 1 else 1
        pads = [shape[-1] // 2] * 4
        nodes.append(helper.make_node("Conv", [given, f"{made}_w"], [norm[0]], group=group, pads=pads))
        nodes.append(helper.make_node("BatchNormalization", norm, [f"{made}_norm" if clips else made]))
        if clips:
            nodes.append(helper.make_node("Clip", [f"{made}_norm", "lo", "hi"], [made]))
        return made

    last = conv("x", "stem", (8, 3, 3, 3))
    for block in range(blocks):
        wide = conv(last, f"wide{block}", (48, 8, 1, 1))
        deep = conv(wide, f"deep{block}", (48, 1, 3, 3))
        last = conv(deep, f"narrow{block}", (8, 48, 1, 1), clips=False)
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def test_random_weights_make_a_vanishing_answer_one_that_can_be_wrong() -> None:
    """Before training a MobileNetV2 answers 1e-28 to everything, and every kernel agreed with that."""
    import onnxruntime

    proto = inverted_residuals()

    def weakness() -> Weakness | None:
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        images = np.random.default_rng(0).standard_normal((2, 1, 3, 16, 16)).astype("float32")
        return find_weakness(*(session.run(None, {"x": image}) for image in images))

    assert weakness() is Weakness.VANISHING
    for seed in range(3):
        randomize_weights(proto, seed)
        assert weakness() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("opset", r"opset 99, and the installed package onnx [\d.]+ knows \d+; update"),
        ("ir", r"IR version 99, and the installed package onnx [\d.]+ knows \d+; update"),
        ("twice", "'h' is written twice, again by node 'second'"),
        ("input", "'image' is written twice, again by node 'second'"),
    ],
)
def test_a_file_that_the_checker_refuses_is_refused(change: str, words: str, tmp_path: Path) -> None:
    """Before, such files were explained and tuned without an error."""
    written = {"twice": "h", "input": "image"}.get(change, "g")
    nodes = [
        helper.make_node("Relu", ["image"], ["h"], name="first"),
        helper.make_node("Abs", ["h"], [written], name="second"),
        helper.make_node("Relu", [written], ["y"]),
    ]
    path = save(tmp_path, nodes, [helper.make_tensor_value_info("image", TensorProto.FLOAT, [2, 3])])
    proto = onnx.load(path)
    proto.ir_version = 99 if change == "ir" else proto.ir_version
    proto.opset_import[0].version = 99 if change == "opset" else 13
    onnx.save(proto, path)

    with pytest.raises(ImportFailed, match=words):
        load_model(path)
