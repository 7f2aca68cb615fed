"""Replaces the weights of an ONNX model by seeded random ones.

Models that ship without training results carry constants for weights. Then every output element is the same number,
and a kernel that mixes up its elements goes unseen. Random weights make it visible.

Activations must neither vanish nor explode on their way, or the final softmax answers 1 for one class whatever the
kernels do. So the mean square of every tensor is estimated along the graph, and the weights of a convolution or product
are scaled to bring its result back to 1; after a rectifier that is He's sqrt(2 / fan_in). Factors and variances lie
around 1, and addends are small. Constants that are not weights (shapes, axes, scalars, constants of operators not
listed) stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_Shape = tuple[int, ...]
_Draw = Callable[[np.random.Generator, _Shape, "NodeProto"], NDArray[np.float64]]
_RENORMALIZING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "InstanceNormalization", "LayerNormalization"})
_RECTIFYING = frozenset({"Relu", "LeakyRelu", "PRelu", "Clip"})
_RESHAPING = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Identity"})
_ADDED_STD = 0.1
_MAX_OF_WINDOW = 3.0
"""How much larger the mean square is after a 3x3 maximum: 5 times for rectified noise, less for smooth data."""


def randomize_weights(proto: ModelProto, seed: int) -> int:
    """Replace the float weights of a model in place. Return how many there were."""
    from onnx import numpy_helper

    rng = np.random.default_rng(seed)
    constants = _constants(proto)
    replaced: set[str] = set()
    fresh = []
    squares: dict[str, float] = {}
    sums: set[str] = set()
    sources = _reshaped(proto)
    for node in proto.graph.node:
        for index, given in enumerate(node.input):
            name = sources.get(given, given)
            draw = _ROLES.get((node.op_type, index)) or _ROLES.get((node.op_type, None))
            if draw is None or name in replaced or name not in constants:
                continue
            shape, dtype = constants[name]
            if dtype.kind != "f" or math.prod(shape) < 2:
                continue
            scale = _damping(node, index, squares)
            fresh.append(numpy_helper.from_array((draw(rng, shape, node) * scale).astype(dtype), name))
            replaced.add(name)
        added = constants.keys() | sources.keys()
        squares.update(dict.fromkeys(node.output, _mean_square(node, squares, added, sums)))
        if node.op_type in ("Add", "Sum"):
            sums.update(node.output)
    _drop(proto, replaced)
    proto.graph.initializer.extend(fresh)
    return len(fresh)


def _constants(proto: ModelProto) -> dict[str, tuple[_Shape, np.dtype[np.generic]]]:
    """Return shape and element type of each constant in a graph: initializers, Constant, ConstantOfShape."""
    from onnx import helper, numpy_helper

    found = {
        tensor.name: (tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
        for tensor in proto.graph.initializer
    }
    stored = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        dtype = helper.tensor_dtype_to_np_dtype(value.data_type) if value is not None else np.dtype("float32")
        if node.op_type == "Constant" and value is not None:
            found[node.output[0]] = (tuple(value.dims), dtype)
        elif node.op_type == "ConstantOfShape" and node.input[0] in stored:
            shape = numpy_helper.to_array(stored[node.input[0]]).tolist()
            found[node.output[0]] = (tuple(shape), dtype)
    return found


def _reshaped(proto: ModelProto) -> dict[str, str]:
    """Map the result of each node that only reshapes to the tensor that it was made from."""
    found: dict[str, str] = {}
    for node in proto.graph.node:
        if node.op_type in _RESHAPING:
            found[node.output[0]] = found.get(node.input[0], node.input[0])
    constants = _constants(proto)
    return {name: source for name, source in found.items() if source in constants}


def _drop(proto: ModelProto, names: set[str]) -> None:
    """Remove the definitions of these constants."""
    graph = proto.graph
    nodes = [node for node in graph.node if not (len(node.output) == 1 and node.output[0] in names)]
    tensors = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)


def _damping(node: NodeProto, index: int, squares: dict[str, float]) -> float:
    """Return the factor that cancels the size of the data that a weight is multiplied with."""
    is_weight = node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul") and index == 1
    return 1.0 / math.sqrt(squares.get(node.input[0], 1.0)) if is_weight else 1.0


def _mean_square(node: NodeProto, squares: dict[str, float], constants: Set[str], sums: set[str]) -> float:
    """Estimate the mean square of a node's result; a model's inputs count as 1.

    A sum of branches is mostly positive, so a rectifier leaves it as it is; symmetric data it halves.
    """
    inputs = [_ADDED_STD**2 if name in constants else squares.get(name, 1.0) for name in node.input] or [1.0]
    if node.op_type in _RENORMALIZING:
        return 1.0
    if node.op_type in _RECTIFYING:
        return inputs[0] if node.input[0] in sums else inputs[0] / 2
    if node.op_type == "MaxPool":
        return inputs[0] * _MAX_OF_WINDOW
    if node.op_type in ("Add", "Sum"):
        return sum(inputs)
    if node.op_type == "Mul":
        return math.prod(1.0 if name in constants else squares.get(name, 1.0) for name in node.input)
    return sum(inputs) / len(inputs) if node.op_type == "Concat" else inputs[0]


def _deviation(fan_in: int) -> float:
    return math.sqrt(1.0 / max(fan_in, 1))


def _filter(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> NDArray[np.float64]:
    return rng.standard_normal(shape) * _deviation(math.prod(shape[1:]))


def _matrix(rng: np.random.Generator, shape: _Shape, node: NodeProto) -> NDArray[np.float64]:
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    fan_in = shape[-1] if transposed or len(shape) < 2 else shape[-2]
    return rng.standard_normal(shape) * _deviation(fan_in)


def _added(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> NDArray[np.float64]:
    return rng.standard_normal(shape) * _ADDED_STD


def _factor(rng: np.random.Generator, shape: _Shape, _: NodeProto) -> NDArray[np.float64]:
    return rng.uniform(0.8, 1.2, shape)


_ROLES: dict[tuple[str, int | None], _Draw] = {
    ("Conv", 1): _filter,
    ("Conv", 2): _added,
    ("ConvTranspose", 1): _filter,
    ("ConvTranspose", 2): _added,
    ("Gemm", 1): _matrix,
    ("Gemm", 2): _added,
    ("MatMul", 1): _matrix,
    ("BatchNormalization", 1): _factor,
    ("BatchNormalization", 2): _added,
    ("BatchNormalization", 3): _added,
    ("BatchNormalization", 4): _factor,
    ("InstanceNormalization", 1): _factor,
    ("InstanceNormalization", 2): _added,
    ("LayerNormalization", 1): _factor,
    ("LayerNormalization", 2): _added,
    ("PRelu", 1): _factor,
    ("Add", None): _added,
    ("Sum", None): _added,
    ("Mul", None): _factor,
}
