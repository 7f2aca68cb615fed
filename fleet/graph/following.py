"""Operators that support any layout: they follow their inputs, and their axes are renumbered.

Each rule has the form operator(transpose(x)) = transpose(operator'(x)); see fleet.graph.channels_last.
"""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Call, Expr, TupleGetItem

from fleet.graph.constants import rank_of, shape_of
from fleet.graph.rebuilding import TUPLE_ITEM, Rebuild, Rule, with_attrs
from fleet.graph.transposes import moved_of, transposed


def elementwise(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute element by element on channels-last tensors in their layout."""
    axes = _common_axes(rebuild, list(call.args))
    if axes is None or rank_of(rebuild.builder.normalize(call)) != len(axes):
        return None
    if any(0 < rank_of(arg) < len(axes) and shape_of(arg) is None for arg in call.args):
        return None
    stored = [_stored(rebuild, arg, axes) for arg in call.args]
    return transposed(rebuild.bind(with_attrs(call, stored, {})), axes)


def concatenate(rebuild: Rebuild, call: Call) -> Expr | None:
    """Concatenate channels-last tensors in their layout."""
    tensors = rebuild.bound_to(call.args[0])
    if not isinstance(tensors, relax.Tuple) or call.attrs.axis is None:
        return None
    axes = _common_axes(rebuild, list(tensors.fields))
    if axes is None:
        return None
    stored = [_stored(rebuild, tensor, axes) for tensor in tensors.fields]
    return transposed(rebuild.bind(relax.op.concat(stored, axes[int(call.attrs.axis)])), axes)


def reduce(rebuild: Rebuild, call: Call) -> Expr | None:
    """Reduce a channels-last tensor in its layout."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None or call.attrs.axis is None:
        return None
    rank = len(moved.axes)
    logical = [int(axis) % rank for axis in call.attrs.axis]
    reduced = rebuild.bind(with_attrs(call, [moved.source], {"axis": sorted(moved.axes[axis] for axis in logical)}))
    if call.attrs.keepdims:
        return transposed(reduced, moved.axes)
    kept = [moved.axes[axis] for axis in range(rank) if axis not in logical]
    return transposed(reduced, [sorted(kept).index(axis) for axis in kept])


def along_axis(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute along one axis, as softmax does, on a channels-last tensor in its layout."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None:
        return None
    axis = moved.axes[int(call.attrs.axis) % len(moved.axes)]
    return transposed(rebuild.bind(with_attrs(call, [moved.source, *list(call.args)[1:]], {"axis": axis})), moved.axes)


def normalize(rebuild: Rebuild, call: Call) -> Expr | None:
    """Normalize a channels-last tensor over groups of channels, or over some axes, in its layout."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None:
        return None
    rank = len(moved.axes)
    axes = [moved.axes[int(axis) % rank] for axis in call.attrs.axes]
    if axes != sorted(axes):
        return None  # scale and shift are laid out by these axes
    changed: dict[str, object] = {"axes": axes}
    if hasattr(call.attrs, "channel_axis"):
        changed["channel_axis"] = moved.axes[int(call.attrs.channel_axis) % rank]
    return transposed(rebuild.bind(with_attrs(call, [moved.source, *list(call.args)[1:]], changed)), moved.axes)


def take_slice(rebuild: Rebuild, call: Call) -> Expr | None:
    """Cut a slice out of a channels-last tensor in its layout."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None:
        return None
    rank = len(moved.axes)
    axes = relax.Tuple([relax.prim_value(moved.axes[int(axis.value) % rank]) for axis in call.args[1].fields])
    args = [moved.source, axes, *list(call.args)[2:]]
    return transposed(rebuild.bind(relax.Call(call.op, args, call.attrs)), moved.axes)


def pad(rebuild: Rebuild, call: Call) -> Expr | None:
    """Pad a channels-last tensor in its layout."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None:
        return None
    widths = [int(width) for width in call.attrs.pad_width]
    order = [moved.axes.index(axis) for axis in range(len(moved.axes))]
    stored = [width for axis in order for width in widths[2 * axis : 2 * axis + 2]]
    padded = with_attrs(call, [moved.source, *list(call.args)[1:]], {"pad_width": stored})
    return transposed(rebuild.bind(padded), moved.axes)


def split_part(rebuild: Rebuild, item: TupleGetItem) -> Expr | None:
    """Split a channels-last tensor in its layout."""
    call = rebuild.call_of(item.tuple_value, "relax.split")
    moved = moved_of(rebuild, call.args[0]) if call is not None else None
    if call is None or moved is None:
        return None
    axis = moved.axes[int(call.attrs.axis) % len(moved.axes)]
    parts = rebuild.bind(with_attrs(call, [moved.source], {"axis": axis}))  # the same for each part; only one is kept
    return transposed(rebuild.bind(relax.TupleGetItem(parts, item.index)), moved.axes)


def _common_axes(rebuild: Rebuild, args: list[Expr]) -> list[int] | None:
    """Return the layout of the largest argument that was converted; None if none was, or a larger one was not.

    That one may lie as it should already: moving it for the sake of a smaller one would never end.
    """
    moves = [moved_of(rebuild, arg) for arg in args]
    sizes = [_size(arg) for arg in args]
    moved = [(size, move.axes) for size, move in zip(sizes, moves, strict=True) if move is not None]
    if not moved:
        return None
    size, axes = max(moved)
    return axes if size == max(sizes) else None


def _size(arg: Expr) -> float:
    """Return the number of elements; an unknown one, such as an open batch size, counts as the largest."""
    shape = shape_of(arg)
    return math.inf if shape is None and rank_of(arg) else math.prod(shape or ())


def _stored(rebuild: Rebuild, arg: Expr, axes: list[int]) -> Expr:
    """Return an argument, possibly of fewer axes for broadcasting, in the layout of these axes."""
    if rank_of(arg) == 0:
        return arg
    shape = shape_of(arg)
    if shape is not None and len(shape) < len(axes):
        arg = rebuild.emit(relax.op.reshape(arg, (1,) * (len(axes) - len(shape)) + shape))
    return rebuild.emit(transposed(arg, [axes.index(axis) for axis in range(len(axes))]))


_ELEMENTWISE = (
    *("abs", "add", "astype", "ceil", "clip", "cos", "divide", "equal", "erf", "exp", "floor", "floor_divide"),
    *("greater", "greater_equal", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "maximum"),
    *("minimum", "mod", "multiply", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.selu"),
    *("nn.silu", "nn.softplus", "not_equal", "power", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square"),
    *("subtract", "tanh", "where"),
)

_ALONG_AXIS = ("dequantize", "flip", "nn.log_softmax", "nn.prelu", "nn.softmax", "quantize")

FOLLOWING: dict[str, Rule] = {
    TUPLE_ITEM: split_part,
    "relax.concat": concatenate,
    "relax.nn.pad": pad,
    "relax.strided_slice": take_slice,
    **dict.fromkeys((f"relax.{name}" for name in _ELEMENTWISE), elementwise),
    **dict.fromkeys(("relax.max", "relax.mean", "relax.min", "relax.sum", "relax.variance"), reduce),
    **dict.fromkeys((f"relax.{name}" for name in _ALONG_AXIS), along_axis),
    **dict.fromkeys(("relax.nn.group_norm", "relax.nn.instance_norm", "relax.nn.layer_norm"), normalize),
}
