"""Replaces the weights of an ONNX model by seeded random ones.

Models that ship without training results carry constants for weights. Then every output element is the same number,
and a kernel that mixes up its elements goes unseen. Random weights make it visible.

The scale follows what the weight does, so that activations neither vanish nor explode on their way: He's
sqrt(2 / fan_in) for convolutions and products, values around 1 for factors and variances, small ones for what is added.
What is no weight (shapes, axes, scalars, quantities of operators not listed) stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Shape = tuple[int, ...]
_Draw = Callable[[np.random.Generator, _Shape, Any], NDArray[Any]]


def randomize_weights(proto: Any, seed: int) -> int:
    """Replace the float weights of a model in place. Return how many there were."""
    from onnx import numpy_helper

    rng = np.random.default_rng(seed)
    constants = _constants(proto)
    replaced: set[str] = set()
    fresh = []
    for node in proto.graph.node:
        for index, name in enumerate(node.input):
            draw = _ROLES.get((node.op_type, index)) or _ROLES.get((node.op_type, None))
            if draw is None or name in replaced or name not in constants:
                continue
            shape, dtype = constants[name]
            if dtype.kind != "f" or math.prod(shape) < 2:
                continue
            fresh.append(numpy_helper.from_array(draw(rng, shape, node).astype(dtype), name))
            replaced.add(name)
    _drop(proto, replaced)
    proto.graph.initializer.extend(fresh)
    return len(fresh)


def _constants(proto: Any) -> dict[str, tuple[_Shape, np.dtype[Any]]]:
    """Return shape and element type of all that is constant in a graph: initializers, Constant, ConstantOfShape."""
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


def _drop(proto: Any, names: set[str]) -> None:
    """Remove what defined some constants."""
    graph = proto.graph
    nodes = [node for node in graph.node if not (len(node.output) == 1 and node.output[0] in names)]
    tensors = [tensor for tensor in graph.initializer if tensor.name not in names]
    del graph.node[:]
    del graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)


def _he(fan_in: int) -> float:
    return math.sqrt(2.0 / max(fan_in, 1))


def _filter(rng: np.random.Generator, shape: _Shape, _: Any) -> NDArray[Any]:
    return rng.standard_normal(shape) * _he(math.prod(shape[1:]))


def _matrix(rng: np.random.Generator, shape: _Shape, node: Any) -> NDArray[Any]:
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    fan_in = shape[-1] if transposed or len(shape) < 2 else shape[-2]
    return rng.standard_normal(shape) * _he(fan_in)


def _added(rng: np.random.Generator, shape: _Shape, _: Any) -> NDArray[Any]:
    return rng.standard_normal(shape) * 0.1


def _factor(rng: np.random.Generator, shape: _Shape, _: Any) -> NDArray[Any]:
    return rng.uniform(0.5, 1.5, shape)


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
