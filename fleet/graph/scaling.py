"""Moves scales and shifts by constants towards the preceding weights and into them, which absorbs BatchNorm.

Scales go in front of shifts: (x + a) * b becomes x * b + a * b. A factor behind a convolution or a matrix product with
a single reader is multiplied into its weights, and one addition is left of the shifts.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.constants import Array, array_of, constant, dtype_of, operand, shape_of
from fleet.graph.rebuilding import Rebuild, Rule, op_name

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d")


def join_shifts(rebuild: Rebuild, call: Call) -> Expr | None:
    """Join two additions of constants."""
    shift = array_of(rebuild, call.args[1])
    before = rebuild.call_only_for(call.args[0], "relax.add")
    first = array_of(rebuild, before.args[1]) if before is not None else None
    if before is None or shift is None or first is None or not _keep_shape(before, first, shift):
        return None
    return relax.op.add(before.args[0], operand(first + shift, before.args[0]))


def push_scale(rebuild: Rebuild, call: Call) -> Expr | None:
    """Move a scale in front of a shift, join it with another scale, or multiply it into weights."""
    scale = array_of(rebuild, call.args[1])
    before = rebuild.call_only_for(call.args[0], "relax.add", "relax.multiply", "relax.matmul", *_CONVOLUTIONS)
    if before is None or scale is None or not np.issubdtype(scale.dtype, np.floating):
        return None
    if op_name(before) not in ("relax.add", "relax.multiply"):
        return _scaled_weights(rebuild, before, scale)
    first = array_of(rebuild, before.args[1])
    if first is None or not _keep_shape(before, first, scale):
        return None
    if op_name(before) == "relax.multiply":
        return relax.op.multiply(before.args[0], operand(first * scale, before.args[0]))
    if scale.size == 1 and _weights_of(rebuild, before.args[0]) is None:
        return None  # an epilogue like gelu's, which gains nothing
    scaled = rebuild.emit(relax.op.multiply(before.args[0], operand(scale, before.args[0])))
    return relax.op.add(scaled, operand(first * scale, scaled))


def _weights_of(rebuild: Rebuild, expr: Expr) -> Array | None:
    call = rebuild.call_only_for(expr, "relax.matmul", *_CONVOLUTIONS)
    return None if call is None else array_of(rebuild, call.args[1])


def _scaled_weights(rebuild: Rebuild, call: Call, scale: Array) -> Expr | None:
    """Return a convolution or matrix product with scaled output channels, or None if the scale is not along them."""
    weights, shape = array_of(rebuild, call.args[1]), shape_of(rebuild.builder.normalize(call))
    if weights is None or shape is None or scale.ndim > len(shape):
        return None
    is_matmul = op_name(call) == "relax.matmul"
    axis = len(shape) - 1 if is_matmul else str(call.attrs.out_layout).index("C")
    by_channel = _by_axis(scale, axis, len(shape))
    if by_channel is None or (is_matmul and weights.ndim < 2):
        return None
    weight_axis = weights.ndim - 1 if is_matmul else str(call.attrs.kernel_layout).index("O")
    factor = by_channel.reshape([-1 if dim == weight_axis else 1 for dim in range(weights.ndim)])
    scaled = constant(weights.astype(np.float64) * factor, str(weights.dtype))
    return relax.Call(call.op, [call.args[0], scaled], call.attrs)


def _by_axis(value: Array, axis: int, rank: int) -> Array | None:
    """Return a constant that varies along one axis only as a vector [its size, or 1]; None for other constants."""
    shape = (1,) * (rank - value.ndim) + value.shape
    varies = [dim for dim, size in enumerate(shape) if size > 1]
    return value.reshape(-1) if varies in ([], [axis]) else None


def _keep_shape(before: Call, *constants: Array) -> bool:
    """Tell whether constants do not broadcast the tensor that they are combined with."""
    shape = shape_of(before.args[0])
    if shape is None or any(str(value.dtype) != dtype_of(before.args[0]) for value in constants):
        return False
    joined = np.broadcast_shapes(*(value.shape for value in constants))
    return np.broadcast_shapes(shape, joined) == shape and math.prod(joined) < math.prod(shape)


SCALING: dict[str, Rule] = {"relax.add": join_shifts, "relax.multiply": push_scale}
