"""Computes values that depend on constants only, in numpy: reshaped biases, transposed weights, scales of
normalizations.

Only operators that models apply to weights are here. TVM's own FoldConstant computes the rest, slowly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm.relax import Call, Expr

from fleet.graph.constants import Array, array_of, constant, dtype_of, shape_of
from fleet.graph.rebuilding import Rebuild, Rule, op_name

_ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "relax.abs": np.abs,
    "relax.add": np.add,
    "relax.exp": np.exp,
    "relax.floor_divide": np.floor_divide,
    "relax.isnan": np.isnan,
    "relax.log": np.log,
    "relax.maximum": np.maximum,
    "relax.minimum": np.minimum,
    "relax.multiply": np.multiply,
    "relax.negative": np.negative,
    "relax.power": np.power,
    "relax.sqrt": np.sqrt,
    "relax.square": np.square,
    "relax.subtract": np.subtract,
}
_RESHAPING = ("relax.broadcast_to", "relax.expand_dims", "relax.flatten", "relax.reshape", "relax.squeeze")


def fold(rebuild: Rebuild, call: Call) -> Expr | None:
    """Return the value of a call as a constant; None if an argument is not constant."""
    args = list(call.args)[:1] if op_name(call) in _RESHAPING else list(call.args)
    arrays = [array_of(rebuild, arg) for arg in args]
    known = [array for array in arrays if array is not None]
    if not known or len(known) < len(arrays):
        return None
    return _computed(rebuild, call, known)


def _computed(rebuild: Rebuild, call: Call, arrays: list[Array]) -> Expr | None:
    name = op_name(call)
    if name in _ELEMENTWISE:
        return constant(_ELEMENTWISE[name](*arrays), dtype_of(rebuild.builder.normalize(call)))
    if name == "relax.permute_dims":
        axes = call.attrs.axes
        return constant(np.transpose(arrays[0], None if axes is None else [int(axis) for axis in axes]))
    if name == "relax.astype":
        return constant(arrays[0].astype(str(call.attrs.dtype)))
    if name == "relax.divide" and np.issubdtype(arrays[0].dtype, np.floating):
        return constant(np.divide(*arrays), str(arrays[0].dtype))
    if name == "relax.dequantize":
        return constant(_dequantized(*arrays, axis=int(call.attrs.axis)), str(call.attrs.out_dtype))
    if name in _RESHAPING:
        return _reshaped(rebuild.builder.normalize(call), arrays[0])
    return None


def _dequantized(array: Array, scale: Array, zero: Array, *, axis: int) -> Array:
    """Return dequantized numbers; scale and zero point are scalars, or have one element per index of the axis."""
    broadcast = [-1 if dim == axis % array.ndim else 1 for dim in range(array.ndim)]
    by_index = (value.reshape(broadcast if value.size > 1 else ()) for value in (scale, zero.astype(np.float32)))
    factor, shift = by_index
    return np.asarray((array.astype(np.float32) - shift) * factor)


def _reshaped(call: Expr, array: Array) -> Expr | None:
    shape = shape_of(call)
    if shape is None or dtype_of(call) != str(array.dtype):
        return None
    return constant(np.broadcast_to(array, shape) if op_name(call) == "relax.broadcast_to" else array.reshape(shape))


FOLDING: dict[str, Rule] = dict.fromkeys(
    (*_ELEMENTWISE, *_RESHAPING, "relax.astype", "relax.dequantize", "relax.divide", "relax.permute_dims"), fold
)
