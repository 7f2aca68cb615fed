"""Removes leftovers of training and exporters from a model, and canonicalises the rest.

Dropout and identities go; BatchNorm becomes one multiplication and one addition by constants; a `Sum` becomes
additions, which are fused with their neighbours; operators that only change a shape become a reshape.
"""

from __future__ import annotations

import functools

import numpy as np
from tvm import relax
from tvm.relax import Call, Expr, TupleGetItem

from fleet.graph.constants import array_of, constant, dtype_of, is_constant, operand, rank_of, shape_of
from fleet.graph.rebuilding import TUPLE_ITEM, Rebuild, Rule, op_name
from fleet.graph.transposes import is_reshape, transposed_axes

_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten", "relax.nn.batch_flatten")

_WHOLE_POWERS = range(2, 6)
"""Exponents that become multiplications. For larger ones the float32 rounding errors exceed 4 ulp."""


def drop_tuple(rebuild: Rebuild, item: TupleGetItem) -> Expr | None:
    """Replace the first result of a dropout by its input, and that of a batch norm by a scale and a shift."""
    if item.index != 0:
        return None
    call = rebuild.call_of(item.tuple_value, "relax.nn.dropout", "relax.nn.batch_norm")
    if call is None:
        return None
    return call.args[0] if op_name(call) == "relax.nn.dropout" else _scale_and_shift(rebuild, call)


def fold_stack(rebuild: Rebuild, call: Call) -> Expr | None:
    """Replace a reduction over a stack of tensors, the form of ONNX's `Sum` and `Max`, by additions or maxima."""
    stack = rebuild.call_only_for(call.args[0], "relax.stack")
    if stack is None or call.attrs.keepdims or call.attrs.axis is None:
        return None
    axis = 0 if stack.attrs.axis is None else int(stack.attrs.axis)
    tensors = rebuild.bound_to(stack.args[0])
    if [int(reduced) for reduced in call.attrs.axis] != [axis] or not isinstance(tensors, relax.Tuple):
        return None
    operators = {"relax.max": relax.op.maximum, "relax.min": relax.op.minimum, "relax.sum": relax.op.add}
    operator = operators[op_name(call)]
    return functools.reduce(lambda left, right: operator(rebuild.emit(left), right), tensors.fields)


def power(rebuild: Rebuild, call: Call) -> Expr | None:
    """Replace small integer powers by multiplications, and other uniform exponents by scalar constants.

    CUDA's fast `pow` is NaN for negative numbers. A scalar exponent is part of the program instead of an input.
    """
    base, exponent = call.args[0], array_of(rebuild, call.args[1])
    if exponent is None or exponent.size == 0 or exponent.ndim > rank_of(base):
        return None
    value = exponent.reshape(-1)[0]
    if not np.all(exponent == value):
        return None
    shape = shape_of(base)
    if exponent.size != 1 and (shape is None or shape != shape_of(rebuild.builder.normalize(call))):
        return None  # the exponent broadcasts the base, or may
    if value in _WHOLE_POWERS:
        return _product(rebuild, base, int(value))
    return relax.op.power(base, constant(exponent.reshape(-1)[0])) if exponent.ndim else None


def _product(rebuild: Rebuild, base: Expr, exponent: int) -> Expr:
    square = relax.op.multiply(base, base)
    if exponent == 2:
        return square
    square = rebuild.bind(square)
    if exponent == 3:
        return relax.op.multiply(square, base)
    fourth = relax.op.multiply(square, square)
    return fourth if exponent == 4 else relax.op.multiply(rebuild.bind(fourth), base)


def reshape_once(rebuild: Rebuild, call: Call) -> Expr | None:
    """Drop a no-op reshape, merge two, and convert all other reshaping operators into this form."""
    source, shape = call.args[0], shape_of(rebuild.builder.normalize(call))
    if shape is None:
        return None
    if shape == shape_of(source):
        return source
    before = rebuild.call_of(source, "relax.reshape")
    if before is not None:
        return relax.op.reshape(before.args[0], shape)
    return None if op_name(call) == "relax.reshape" else relax.op.reshape(source, shape)


def broadcast_once(rebuild: Rebuild, call: Call) -> Expr | None:
    """Drop a broadcast to the shape that a tensor already has."""
    shape = shape_of(call.args[0])
    return call.args[0] if shape is not None and shape == shape_of(rebuild.builder.normalize(call)) else None


def transpose_once(rebuild: Rebuild, call: Call) -> Expr | None:
    """Drop a no-op transpose, and merge two."""
    axes = transposed_axes(call)
    if axes == sorted(axes):
        return call.args[0]
    before = rebuild.call_of(call.args[0], "relax.permute_dims")
    if before is None:
        return None
    first = transposed_axes(before)
    return relax.op.permute_dims(before.args[0], [first[axis] for axis in axes])


def cast_once(rebuild: Rebuild, call: Call) -> Expr | None:
    """Drop a cast to the dtype that a tensor already has."""
    return call.args[0] if dtype_of(call.args[0]) == str(call.attrs.dtype) else None


def constant_right(rebuild: Rebuild, call: Call) -> Expr | None:
    """Move the constant of an addition or multiplication to the right, where the other passes expect it."""
    left, right = call.args
    return relax.Call(call.op, [right, left], call.attrs) if is_constant(left) and not is_constant(right) else None


def subtract_none(rebuild: Rebuild, call: Call) -> Expr | None:
    """Turn the subtraction of a constant into an addition."""
    subtracted = _float_constant(rebuild, call.args[1])
    return None if subtracted is None else relax.op.add(call.args[0], operand(-subtracted, call.args[0]))


def divide_none(rebuild: Rebuild, call: Call) -> Expr | None:
    """Turn the division by a constant into a multiplication, which folds into weights."""
    divisor = _float_constant(rebuild, call.args[1])
    if divisor is None or not np.all(divisor):
        return None
    with np.errstate(over="ignore"):
        factor = (1 / divisor.astype(np.float64)).astype(divisor.dtype)
    if np.any(np.isinf(factor)):
        return None  # no float16 is beyond 1e-5 as float16 has it
    return relax.op.multiply(call.args[0], operand(factor, call.args[0]))


def sinh(rebuild: Rebuild, call: Call) -> Expr | None:
    """Write a hyperbolic sine as tanh(x) cosh(x), which is accurate for small numbers: TVM has no vector version."""
    return relax.op.multiply(rebuild.bind(relax.op.tanh(call.args[0])), rebuild.bind(_cosh(rebuild, call.args[0])))


def cosh(rebuild: Rebuild, call: Call) -> Expr | None:
    """Write a hyperbolic cosine with exponentials, which TVM vectorizes."""
    return _cosh(rebuild, call.args[0])


def _cosh(rebuild: Rebuild, x: Expr) -> Expr:
    up, down = (rebuild.bind(relax.op.exp(each)) for each in (x, rebuild.bind(relax.op.negative(x))))
    half = operand(np.array(0.5, dtype_of(x)), x)
    return relax.op.multiply(rebuild.bind(relax.op.add(up, down)), half)


def _float_constant(rebuild: Rebuild, expr: Expr) -> np.ndarray | None:
    array = array_of(rebuild, expr)
    return array if array is not None and np.issubdtype(array.dtype, np.floating) else None


def _scale_and_shift(rebuild: Rebuild, norm: Call) -> Expr | None:
    """Return a batch norm (gamma, beta, mean, variance) as x * scale + shift."""
    arrays = [array_of(rebuild, arg) for arg in norm.args[1:5]]
    shape = shape_of(norm.args[0])
    if norm.attrs.training or shape is None or any(array is None for array in arrays):
        return None
    gamma, beta, mean, variance = (np.asarray(array, dtype=np.float64) for array in arrays)
    scale = 1 / np.sqrt(variance + float(norm.attrs.epsilon))
    scale = scale * gamma if norm.attrs.scale else scale
    shift = (beta if norm.attrs.center else 0) - mean * scale
    axis = int(norm.attrs.axis) % len(shape)
    broadcast = [-1 if dim == axis else 1 for dim in range(len(shape))]
    dtype = dtype_of(norm.args[0])
    scaled = rebuild.emit(relax.op.multiply(norm.args[0], constant(scale.reshape(broadcast), dtype)))
    return relax.op.add(scaled, constant(shift.reshape(broadcast), dtype))


def reshape_for_transpose(rebuild: Rebuild, call: Call) -> Expr | None:
    """Replace a transpose that moves nothing in memory by a reshape, which is free."""
    shape = shape_of(call.args[0])
    if shape is None or not is_reshape(call, shape):
        return None
    return relax.op.reshape(call.args[0], [shape[axis] for axis in transposed_axes(call)])


FINISHING: dict[str, Rule] = {"relax.permute_dims": reshape_for_transpose}
"""For when no pass looks for transposes any more."""

CLEANING: dict[str, Rule] = {
    TUPLE_ITEM: drop_tuple,
    "relax.add": constant_right,
    "relax.astype": cast_once,
    "relax.broadcast_to": broadcast_once,
    "relax.cosh": cosh,
    "relax.divide": divide_none,
    "relax.multiply": constant_right,
    "relax.permute_dims": transpose_once,
    "relax.power": power,
    "relax.sinh": sinh,
    "relax.subtract": subtract_none,
    **dict.fromkeys(("relax.max", "relax.min", "relax.sum"), fold_stack),
    **dict.fromkeys(_RESHAPES, reshape_once),
}
