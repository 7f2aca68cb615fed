"""Puts channels last: convolutions get NHWC, and everything between them follows, so that only inputs are converted.

A convolution is rewritten as transpose(convolution in NHWC(transpose(x))), and transposes are moved on, behind the
operators that follow, until they meet another one and cancel out. So each rule here has the same form,
operator(transpose(x)) = transpose(operator'(x)), and what no rule knows stays right: it reads what is transposed back.
What is left of transposes is what the model has to convert. (TVM's ConvertLayout fails where an operator of the model
has no layout inference, and adds transposes around it where one is incomplete.)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fleet.graph.constants import array_of, constant, shape_of
from fleet.graph.transposes import moved_of, transposed

if TYPE_CHECKING:
    from tvm.relax import Call, Expr

    from fleet.graph.rebuilding import Rebuild, Rule

_CHANNELS_LAST = {"NCW": ("NWC", "WIO"), "NCHW": ("NHWC", "HWIO"), "NCDHW": ("NDHWC", "DHWIO")}
"""Data and kernel layout by the data layout that models come with."""


def convolve(rebuild: Rebuild, call: Call) -> Expr | None:
    """Give a convolution channels last. Constant weights are transposed here and now."""
    from tvm import relax

    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if layout not in _CHANNELS_LAST or str(call.attrs.out_layout) != layout:
        return None
    to_layout, to_kernel = _CHANNELS_LAST[layout]
    data = _transposed_to(rebuild, call.args[0], layout, to_layout)
    weights = _transposed_to(rebuild, call.args[1], kernel_layout, to_kernel)
    operator = {"NCW": relax.op.nn.conv1d, "NCHW": relax.op.nn.conv2d, "NCDHW": relax.op.nn.conv3d}[layout]
    convolved = operator(
        data,
        weights,
        strides=call.attrs.strides,
        padding=call.attrs.padding,
        dilation=call.attrs.dilation,
        groups=int(call.attrs.groups),
        data_layout=to_layout,
        kernel_layout=to_kernel,
        out_layout=to_layout,
        out_dtype=call.attrs.out_dtype,
    )
    return transposed(rebuild.emit(convolved), [to_layout.index(axis) for axis in layout])


def pool(rebuild: Rebuild, call: Call) -> Expr | None:
    """Pool what lies with its channels last where it lies."""
    moved, layout = moved_of(rebuild, call.args[0]), str(call.attrs.layout)
    if moved is None or layout not in _CHANNELS_LAST or str(call.attrs.out_layout) != layout:
        return None
    to_layout = _CHANNELS_LAST[layout][0]
    if moved.axes == [to_layout.index(axis) for axis in layout]:
        attrs: dict[str, object] = {"layout": to_layout, "out_layout": to_layout}
    elif moved.axes[:2] == [0, 1]:  # channels were made a spatial axis: local response normalization
        attrs = _by_stored_axis(call, [axis - 2 for axis in moved.axes[2:]])
    else:
        return None
    return transposed(rebuild.emit(_with_attrs(call, [moved.source], attrs)), moved.axes)


def reshape(rebuild: Rebuild, call: Call) -> Expr | None:
    """Reshape what lies with its channels last where the channels, or a split of them, stay together."""
    from tvm import relax

    moved = moved_of(rebuild, call.args[0])
    before, after = shape_of(call.args[0]), shape_of(rebuild.builder.normalize(call))
    if moved is None or before is None or after is None:
        return None
    channels = before[moved.first : moved.first + moved.count]
    found = _find_block(after, math.prod(before[: moved.first]), math.prod(channels))
    if found is None:
        return None
    start, end = found
    source = rebuild.emit(transposed(moved.source, moved.order_among_moved()))
    stored = [*after[:start], *after[end:], *after[start:end]]
    rank, size = len(after), end - start
    back = [*range(start), *range(rank - size, rank), *range(start, rank - size)]
    return transposed(rebuild.emit(relax.op.reshape(source, stored)), back)


def multiply_flat(rebuild: Rebuild, call: Call) -> Expr | None:
    """Multiply what was flattened with its channels last: the rows of constant weights are put into that order."""
    from tvm import relax

    flat = rebuild.call_of(call.args[0], "relax.reshape")
    moved = moved_of(rebuild, flat.args[0]) if flat is not None else None
    weights = array_of(rebuild, call.args[1])
    if flat is None or moved is None or weights is None or weights.ndim != 2:
        return None
    shape, flat_shape = shape_of(flat.args[0]), shape_of(call.args[0])
    if shape is None or flat_shape is None or flat_shape != (shape[0], weights.shape[0]) or moved.axes[0] != 0:
        return None
    stored_axes = [moved.axes.index(axis) for axis in range(1, len(shape))]  # logical axis by stored axis
    rows = weights.reshape(*shape[1:], -1).transpose([axis - 1 for axis in stored_axes] + [len(shape) - 1])
    data = rebuild.emit(relax.op.reshape(moved.source, flat_shape))
    return relax.op.matmul(data, constant(rows.reshape(weights.shape)), out_dtype=call.attrs.out_dtype)


def concatenate(rebuild: Rebuild, call: Call) -> Expr | None:
    """Concatenate what lies with its channels last where it lies."""
    from tvm import relax

    tensors = rebuild.bound_to(call.args[0])
    if not isinstance(tensors, relax.Tuple) or call.attrs.axis is None:
        return None
    axes = _common_axes(rebuild, list(tensors.fields))
    if axes is None:
        return None
    stored = [_stored(rebuild, tensor, axes) for tensor in tensors.fields]
    return transposed(rebuild.emit(relax.op.concat(stored, axes[int(call.attrs.axis)])), axes)


def elementwise(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute element by element what lies with its channels last where it lies."""
    axes = _common_axes(rebuild, list(call.args))
    result = shape_of(rebuild.builder.normalize(call))
    if axes is None or result is None or len(result) != len(axes):
        return None
    stored = [_stored(rebuild, arg, axes) for arg in call.args]
    return transposed(rebuild.emit(_with_attrs(call, stored, {})), axes)


def reduce(rebuild: Rebuild, call: Call) -> Expr | None:
    """Reduce what lies with its channels last where it lies."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None or call.attrs.axis is None:
        return None
    rank = len(moved.axes)
    logical = [int(axis) % rank for axis in call.attrs.axis]
    reduced = rebuild.emit(_with_attrs(call, [moved.source], {"axis": sorted(moved.axes[axis] for axis in logical)}))
    if call.attrs.keepdims:
        return transposed(reduced, moved.axes)
    kept = [moved.axes[axis] for axis in range(rank) if axis not in logical]
    return transposed(reduced, [sorted(kept).index(axis) for axis in kept])


def along_axis(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute along one axis, as softmax does, what lies with its channels last where it lies."""
    moved = moved_of(rebuild, call.args[0])
    if moved is None:
        return None
    axis = moved.axes[int(call.attrs.axis) % len(moved.axes)]
    return transposed(rebuild.emit(_with_attrs(call, [moved.source, *list(call.args)[1:]], {"axis": axis})), moved.axes)


def resize(rebuild: Rebuild, call: Call) -> Expr | None:
    """Resize what lies with its channels last where it lies."""
    moved, layout = moved_of(rebuild, call.args[0]), str(call.attrs.layout)
    if moved is None or layout != "NCHW" or moved.axes != ["NHWC".index(axis) for axis in layout]:
        return None
    resized = _with_attrs(call, [moved.source, *list(call.args)[1:]], {"layout": "NHWC"})
    return transposed(rebuild.emit(resized), moved.axes)


def _transposed_to(rebuild: Rebuild, tensor: Expr, layout: str, to_layout: str) -> Expr:
    return rebuild.emit(transposed(tensor, [layout.index(axis) for axis in to_layout]))


def _common_axes(rebuild: Rebuild, args: list[Expr]) -> list[int] | None:
    """Return how the largest argument that was moved lies, None when none was."""
    found = [moved for moved in (moved_of(rebuild, arg) for arg in args) if moved is not None]
    return max(found, key=lambda moved: math.prod(shape_of(moved.source) or (0,))).axes if found else None


def _stored(rebuild: Rebuild, arg: Expr, axes: list[int]) -> Expr:
    """Return an argument, which may have fewer axes and be broadcast, stored as others are that lie by these axes."""
    from tvm import relax

    shape = shape_of(arg) if isinstance(arg.ty, relax.TensorType) else ()
    if not shape:
        return arg
    if len(shape) < len(axes):
        arg = rebuild.emit(relax.op.reshape(arg, (1,) * (len(axes) - len(shape)) + shape))
    return rebuild.emit(transposed(arg, [axes.index(axis) for axis in range(len(axes))]))


def _find_block(shape: tuple[int, ...], before: int, channels: int) -> tuple[int, int] | None:
    """Return the slice of a shape that holds the channels, behind axes of that many elements; the longest one."""
    starts = [start for start in range(len(shape) + 1) if math.prod(shape[:start]) == before]
    spans = [
        (start, end)
        for start in starts
        for end in range(start + 1, len(shape) + 1)
        if math.prod(shape[start:end]) == channels
    ]
    return max(spans, key=lambda span: (-(span[1] - span[0]), span[0]), default=None)


def _by_stored_axis(call: Call, spatial: list[int]) -> dict[str, object]:
    """Return a pooling's attributes for spatial axes in another order: spatial[i] is where the i-th one lies."""
    order = [spatial.index(axis) for axis in range(len(spatial))]
    padding, rank = [int(pad) for pad in call.attrs.padding], len(spatial)
    found: dict[str, object] = {
        name: [int(getattr(call.attrs, name)[axis]) for axis in order] for name in ("pool_size", "strides", "dilation")
    }
    return found | {"padding": [padding[axis] for axis in order] + [padding[rank + axis] for axis in order]}


def _with_attrs(call: Call, args: list[Expr], changed: dict[str, object]) -> Expr:
    """Return a call with other arguments, and some of its attributes changed."""
    import tvm
    from tvm import relax

    if not changed:
        return relax.Call(call.op, args, call.attrs)
    kind = type(call.attrs).__tvm_ffi_type_info__
    attrs = {field.name: getattr(call.attrs, field.name) for field in kind.fields} | changed
    return relax.Call(call.op, args, tvm.ir.make_node(kind.type_key, **attrs))


_ELEMENTWISE = (
    *("abs", "add", "astype", "ceil", "clip", "cos", "divide", "equal", "erf", "exp", "floor", "floor_divide"),
    *("greater", "greater_equal", "less", "less_equal", "log", "logical_and", "logical_not", "logical_or", "maximum"),
    *("minimum", "mod", "multiply", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.selu"),
    *("nn.silu", "nn.softplus", "not_equal", "power", "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square"),
    *("subtract", "tanh", "where"),
)
_POOLS = ("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")

CHANNELS_LAST: dict[str, Rule] = {
    "relax.concat": concatenate,
    "relax.image.resize2d": resize,
    "relax.matmul": multiply_flat,
    "relax.reshape": reshape,
    **dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"), convolve),
    **dict.fromkeys((f"relax.{name}" for name in _ELEMENTWISE), elementwise),
    **dict.fromkeys((f"relax.{name}" for name in _POOLS), pool),
    **dict.fromkeys(("relax.max", "relax.mean", "relax.min", "relax.sum"), reduce),
    **dict.fromkeys(("relax.nn.log_softmax", "relax.nn.softmax"), along_axis),
}
