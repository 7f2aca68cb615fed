"""TFLite models, against numpy and LiteRT. They are written by hand: TensorFlow is nowhere needed."""

from __future__ import annotations

from pathlib import Path

import flatbuffers
import numpy as np
import pytest
import tflite

from fleet.domain.measuring import TensorSpec
from fleet.errors import ImportFailed, InvalidRequest
from fleet.models.model import import_model, load_model
from fleet.models.reference import reference_outputs
from tests.unit.onnx_cases import Array, ours

pytestmark = pytest.mark.slow

WEIGHT, BIAS = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((3, 1, 1, 2), (3,)))
X = np.random.default_rng(1).standard_normal((1, 4, 5, 2), np.float32)


def vector(builder: flatbuffers.Builder, values: list[int]) -> int:
    """Write a vector of offsets to earlier content."""
    builder.StartVector(4, len(values), 4)
    for value in reversed(values):
        builder.PrependUOffsetTRelative(value)
    return builder.EndVector()


def convolution_model(operator: int = tflite.BuiltinOperator.CONV_2D) -> bytes:
    """Return relu(convolution 1x1 + bias) as a file, of an input that is called as TensorFlow's exporter calls it."""
    builder = flatbuffers.Builder()
    arrays = {"serving_default_x:0": X, "w": WEIGHT, "b": BIAS, "StatefulPartitionedCall:0": np.zeros((1, 4, 5, 3))}
    buffers = []
    for name in (None, "w", "b"):
        data = builder.CreateNumpyVector(arrays[name].view(np.uint8).ravel()) if name else None
        tflite.BufferStart(builder)
        if data is not None:
            tflite.BufferAddData(builder, data)
        buffers.append(tflite.BufferEnd(builder))
    tensors = []
    for place, (name, array) in enumerate(arrays.items()):
        title, shape = builder.CreateString(name), builder.CreateNumpyVector(np.array(array.shape, np.int32))
        tflite.TensorStart(builder)
        tflite.TensorAddName(builder, title)
        tflite.TensorAddShape(builder, shape)
        tflite.TensorAddType(builder, tflite.TensorType.FLOAT32)
        tflite.TensorAddBuffer(builder, place if name in {"w", "b"} else 0)
        tensors.append(tflite.TensorEnd(builder))
    tflite.Conv2DOptionsStart(builder)
    tflite.Conv2DOptionsAddStrideH(builder, 1)
    tflite.Conv2DOptionsAddStrideW(builder, 1)
    tflite.Conv2DOptionsAddFusedActivationFunction(builder, tflite.ActivationFunctionType.RELU)
    options = tflite.Conv2DOptionsEnd(builder)
    given, made, ends = (builder.CreateNumpyVector(np.array(ids, np.int32)) for ids in ([0, 1, 2], [3], [0]))
    tflite.OperatorStart(builder)
    tflite.OperatorAddInputs(builder, given)
    tflite.OperatorAddOutputs(builder, made)
    tflite.OperatorAddBuiltinOptionsType(builder, tflite.BuiltinOptions.Conv2DOptions)
    tflite.OperatorAddBuiltinOptions(builder, options)
    operators = vector(builder, [tflite.OperatorEnd(builder)])
    tensors_at = vector(builder, tensors)
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, tensors_at)
    tflite.SubGraphAddInputs(builder, ends)
    tflite.SubGraphAddOutputs(builder, made)
    tflite.SubGraphAddOperators(builder, operators)
    graphs = vector(builder, [tflite.SubGraphEnd(builder)])
    tflite.OperatorCodeStart(builder)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, operator)
    tflite.OperatorCodeAddBuiltinCode(builder, operator)
    tflite.OperatorCodeAddVersion(builder, 1)
    codes = vector(builder, [tflite.OperatorCodeEnd(builder)])
    buffers_at = vector(builder, buffers)
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddOperatorCodes(builder, codes)
    tflite.ModelAddSubgraphs(builder, graphs)
    tflite.ModelAddBuffers(builder, buffers_at)
    builder.Finish(tflite.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "small.tflite").write_bytes(convolution_model())
    return tmp_path / "small.tflite"


def expected() -> Array:
    return np.maximum(np.einsum("nhwc,oijc->nhwo", X, WEIGHT) + BIAS, 0)


def test_a_tflite_model_computes_the_same_as_its_file(path: Path) -> None:
    """Channels last, filters first, the activation within the operator. Names become identifiers."""
    model = load_model(path)

    assert (model.input_names, model.output_names) == (("serving_default_x",), ("StatefulPartitionedCall",))
    assert model.inputs == (TensorSpec(X.shape, "float32"),)
    np.testing.assert_allclose(ours(model, [X])[0], expected(), rtol=1e-4, atol=1e-5)
    assert [param.name for param in import_model(model)["main"].params] == ["serving_default_x"]


def test_the_reference_is_litert(path: Path) -> None:
    """LiteRT runs the same file as TVM, and is timed."""
    run = reference_outputs(load_model(path), [X])

    assert run is not None
    np.testing.assert_allclose(run.outputs[0], expected(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PK\x03\x04 no flatbuffer at all", "no TFLite model: it lacks the mark TFL3"),
        (convolution_model()[:8] + b"\xff" * 64, "no TFLite model, or damaged"),
    ],
)
def test_an_invalid_tflite_file_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    """Another file or a damaged one is refused before TVM reads it."""
    (tmp_path / "bad.tflite").write_bytes(content)

    with pytest.raises(ImportFailed, match=said):
        load_model(tmp_path / "bad.tflite")


def test_an_operator_that_tvm_lacks_is_an_import_error(tmp_path: Path) -> None:
    """TVM's own message, which names the operator, is part of the error."""
    (tmp_path / "odd.tflite").write_bytes(convolution_model(tflite.BuiltinOperator.DELEGATE))

    with pytest.raises(ImportFailed, match=r"odd: TVM cannot import the model: .*DELEGATE"):
        import_model(load_model(tmp_path / "odd.tflite"))


def test_a_tflite_model_has_the_shapes_and_weights_of_its_file(path: Path) -> None:
    """The sizes of tensors between its operators are fixed in the file."""
    assert load_model(path, shapes={"serving_default_x": X.shape}) == load_model(path)
    with pytest.raises(InvalidRequest, match="dimension 0 of input 'serving_default_x' is 1 in the model, not 2"):
        load_model(path, shapes={"serving_default_x": (2, 4, 5, 2)})
    with pytest.raises(InvalidRequest, match="leave --random-weights out"):
        load_model(path, random_weights_seed=0)
