"""Small ONNX models, and their answers: ours through TVM, ONNX Runtime's for reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from fleet.models.model import Model, import_model, load_model
from tests.unit.quick_compile import compile_quickly

Array = NDArray[np.generic]


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> onnx.ModelProto:
    """Return a checked model with inputs of the shapes and types of these arrays."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "case",
        given,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    proto = onnx.shape_inference.infer_shapes(proto)
    onnx.checker.check_model(proto)
    return proto


def loaded(proto: onnx.ModelProto, folder: Path) -> Model:
    """Return a model as `load_model` reads it from a file."""
    path = folder / "case.onnx"
    onnx.save(proto, path)
    return load_model(path)


def ours(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a model that TVM compiled without any schedule."""
    import tvm
    from tvm import relax

    machine = relax.VirtualMachine(compile_quickly(import_model(model)), tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(array) for array in inputs))
    return [item.numpy() for item in (result if len(model.output_names) > 1 else [result])]


def theirs(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs that ONNX Runtime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.onnx_bytes, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(model.input_names, inputs, strict=True))))


def assert_same(proto: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path) -> None:
    """Assert that our outputs are ONNX Runtime's, in shape, type and value."""
    model = loaded(proto, folder)
    arrays = [inputs[name] for name in model.input_names]
    for expected, actual in zip(theirs(model, arrays), ours(model, arrays), strict=True):
        assert (expected.shape, expected.dtype) == (actual.shape, actual.dtype)
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
