"""Counts the floating-point operations of an ONNX model's products and convolutions; the rest is small beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import shape_inference

_Shape = tuple[int, ...]


def operations(path: Path) -> float:
    """Return the operations of one run; a multiplication with its addition counts as two."""
    graph = shape_inference.infer_shapes(onnx.load(str(path)), data_prop=True).graph
    shapes: dict[str, _Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return 2.0 * sum(_multiplications(node, shapes) for node in graph.node)


def _multiplications(node: onnx.NodeProto, shapes: Mapping[str, _Shape]) -> int:
    if node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    data, weight, result = (shapes.get(name, ()) for name in (node.input[0], node.input[1], node.output[0]))
    if node.op_type == "Conv":
        return math.prod(result) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(data) * math.prod(weight[1:])
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(result) * (data[-2 if transposed else -1] if data else 0)
