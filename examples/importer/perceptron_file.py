"""Reads perceptrons that numpy saved: arrays "w0", "b0", "w1", ... of the layers, with rectifiers in between."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fleet.errors import ImportFailed
from fleet.models.importing.importer import Importer
from fleet.models.importing.onnx_file import ONNX, onnx_models
from fleet.models.importing.shapes import Shapes
from fleet.models.importing.value import Model


def read(path: Path, shape_sets: Sequence[Shapes], batch_size: int | None, seed: int | None) -> list[Model]:
    """Read a file as an ONNX model. The frontend and reference of ONNX then serve this format, too."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as arrays:  # pickles would be code
            weights = {name: arrays[name].astype("float32") for name in arrays.files}
            proto = as_onnx(weights)
    except Exception as error:  # numpy raises whatever a damaged file leads to
        raise ImportFailed(f"{path} is not a perceptron of arrays w0, b0, w1, ...: {error}") from error
    return onnx_models(path.stem, proto, shape_sets, batch_size, seed)


def as_onnx(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """Return the layers as products and rectifiers."""
    layers = len(weights) // 2
    nodes, last = [], "x"
    for layer in range(layers):
        name = "y" if layer == layers - 1 else f"sum{layer}"
        nodes.append(helper.make_node("Gemm", [last, f"w{layer}", f"b{layer}"], [name]))
        if layer < layers - 1:
            nodes.append(helper.make_node("Relu", [name], [f"relu{layer}"]))
        last = f"relu{layer}"
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", weights["w0"].shape[0]])
    made = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "perceptron", [given], [made], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return onnx.shape_inference.infer_shapes(proto)


PERCEPTRON = Importer(forms=("*.npz",), suffix=".npz", read=read, frontend=ONNX.frontend)
