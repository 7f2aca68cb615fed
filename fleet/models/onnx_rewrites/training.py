"""Training operators in models, which TVM converts wrongly or not at all.

TVM gives the mean and deviation of a LayerNormalization a shape of their own, the mask of a Dropout numbers for a type,
and the running statistics of a BatchNormalization the momentum of PyTorch, which ONNX counts the other way round.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto

from fleet.errors import ImportFailed
from fleet.models.onnx_rewrites.graph import Replacement, Rule, attributes_of, called, number, present

_FLOAT, _DOUBLE = 1, 11
"""TensorProto.FLOAT and DOUBLE."""

_EPSILON = 1e-5


def _dropout(node: NodeProto, write: Replacement) -> bool:
    """Replace a dropout by its input, and its mask by all true: outside of training nothing is dropped.

    Raises:
        ImportFailed: it is still in training, and would drop something; TVM drops nothing.
    """
    shape, mask = write.values.shape(node.input[0]), present(node.output, 1)
    if _drops(node, write):
        raise _in_training(node)
    if mask and shape is None:
        return False
    write.op("Identity", node.input[0], output=node.output[0])
    if mask and shape is not None:
        write.op("Identity", write.constant(np.ones(shape, np.bool_)), output=mask)
    return True


def _drops(node: NodeProto, write: Replacement) -> bool:
    """Tell whether a dropout may be active: an input may enable it."""
    unless_said = {1: np.array(0.5), 2: np.array(False)}  # the ratio, and the training mode
    names = {place: present(node.input, place) for place in unless_said}
    constants, unknown = write.values.constants, np.array(True)
    return all((constants.get(name, unknown) if name else unless_said[place]).any() for place, name in names.items())


def _layer_normalization(node: NodeProto, write: Replacement) -> bool:
    """Write out a layer normalization whose mean or deviation is used, or in double precision."""
    shape, dtype = write.values.shape(node.input[0]), write.values.dtype(node.input[0])
    asked = [present(node.output, place) for place in (1, 2)]
    is_double = dtype == np.dtype("float64")
    if shape is None or dtype is None or not (any(asked) or is_double):
        return False
    data = node.input[0] if dtype.kind == "f" and dtype.itemsize > 2 else write.op("Cast", node.input[0], to=_FLOAT)
    axes = range(number(node, "axis", -1) % len(shape), len(shape))
    mean = _mean(write, data, axes)
    apart = write.op("Sub", data, mean)
    variance = _mean(write, write.op("Mul", apart, apart), axes)
    epsilon = attributes_of(node).get("epsilon", _EPSILON)
    added = write.constant(np.array(epsilon, "float64" if is_double else "float32"))
    inverse = write.op("Reciprocal", write.op("Sqrt", write.op("Add", variance, added)))
    result = write.op("CastLike", write.op("Mul", apart, inverse), node.input[0])
    result = write.op("Mul", result, node.input[1])
    bias = present(node.input, 2)
    write.op(*(("Add", result, bias) if bias else ("Identity", result)), output=node.output[0])
    for name, value in zip(asked, (mean, inverse), strict=True):
        if name:
            write.op("Cast", value, to=_FLOAT, output=name)
    return True


def _mean(write: Replacement, name: str, axes: range) -> str:
    for axis in axes:
        name = write.reduce("ReduceMean", name, axis)
    return name


def _batch_normalization(node: NodeProto, write: Replacement) -> bool:
    """Refuse a batch normalization in training mode.

    Raises:
        ImportFailed: the model uses its running mean or variance.
    """
    del write
    if number(node, "training_mode", 0) and any(present(node.output, place) for place in (1, 2)):
        raise _in_training(node)
    return False


def _in_training(node: NodeProto) -> ImportFailed:
    return ImportFailed(f"{called(node)} is still in training; export the model for inference, like model.eval()")


RULES: dict[str, Rule] = {
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
    "LayerNormalization": _layer_normalization,
}
