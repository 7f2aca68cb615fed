"""Converts convolutions to NHWC; everything between them follows, so that only inputs are transposed.

A convolution is rewritten as transpose(convolution in NHWC(transpose(x))), and transposes are moved on, behind the
operators that follow, until they meet another one and cancel out. So each rule here has the same form,
operator(transpose(x)) = transpose(operator'(x)), and operators without a rule stay right: they read the tensor
transposed back. The remaining transposes are the conversions that the model needs. (TVM's ConvertLayout fails where an
operator of the model has no layout inference, and adds transposes around it where one is incomplete.)
"""

from __future__ import annotations

import math

from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.constants import array_of, constant, shape_of
from fleet.graph.following import FOLLOWING
from fleet.graph.rebuilding import Rebuild, Rule, with_attrs
from fleet.graph.transposes import moved_of, transposed, transposed_to

_CHANNELS_LAST = {"NCW": ("NWC", "WIO"), "NCHW": ("NHWC", "HWIO"), "NCDHW": ("NDHWC", "DHWIO")}
"""Data and kernel layout by the data layout that models come with."""


def convolve(rebuild: Rebuild, call: Call) -> Expr | None:
    """Convert a convolution to channels last. Constant weights are transposed at once."""
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if (layout, kernel_layout) == ("NHWC", "HWOI"):  # the layout of depthwise convolutions in TVM's TFLite frontend
        kernel = transposed_to(rebuild, call.args[1], kernel_layout, "HWIO")
        return with_attrs(call, [call.args[0], kernel], {"kernel_layout": "HWIO"})
    if layout not in _CHANNELS_LAST or str(call.attrs.out_layout) != layout:
        return None
    to_layout, to_kernel = _CHANNELS_LAST[layout]
    data = transposed_to(rebuild, call.args[0], layout, to_layout)
    weights = transposed_to(rebuild, call.args[1], kernel_layout, to_kernel)
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
    return transposed(rebuild.bind(convolved), [to_layout.index(axis) for axis in layout])


def pool(rebuild: Rebuild, call: Call) -> Expr | None:
    """Pool a tensor with channels last in its layout."""
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
    return transposed(rebuild.bind(with_attrs(call, [moved.source], attrs)), moved.axes)


def reshape(rebuild: Rebuild, call: Call) -> Expr | None:
    """Reshape a tensor with channels last if the channels, or a split of them, stay together."""
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
    return transposed(rebuild.bind(relax.op.reshape(source, stored)), back)


def multiply_flat(rebuild: Rebuild, call: Call) -> Expr | None:
    """Multiply a flattened channels-last tensor: the rows of constant weights are permuted to its order."""
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


def resize(rebuild: Rebuild, call: Call) -> Expr | None:
    """Resize a tensor with channels last in its layout."""
    moved, layout = moved_of(rebuild, call.args[0]), str(call.attrs.layout)
    if moved is None or layout != "NCHW" or moved.axes != ["NHWC".index(axis) for axis in layout]:
        return None
    resized = with_attrs(call, [moved.source, *list(call.args)[1:]], {"layout": "NHWC"})
    return transposed(rebuild.bind(resized), moved.axes)


def _find_block(shape: tuple[int, ...], before: int, channels: int) -> tuple[int, int] | None:
    """Return the slice of a shape that holds the channels, after axes with that many elements; the longest one."""
    starts = [start for start in range(len(shape) + 1) if math.prod(shape[:start]) == before]
    spans = [
        (start, end)
        for start in starts
        for end in range(start + 1, len(shape) + 1)
        if math.prod(shape[start:end]) == channels
    ]
    return max(spans, key=lambda span: (-(span[1] - span[0]), span[0]), default=None)


def _by_stored_axis(call: Call, spatial: list[int]) -> dict[str, object]:
    """Return a pooling's attributes with its spatial axes permuted: spatial[i] is the new position of axis i."""
    order = [spatial.index(axis) for axis in range(len(spatial))]
    padding, rank = [int(pad) for pad in call.attrs.padding], len(spatial)
    found: dict[str, object] = {
        name: [int(getattr(call.attrs, name)[axis]) for axis in order] for name in ("pool_size", "strides", "dilation")
    }
    return found | {"padding": [padding[axis] for axis in order] + [padding[rank + axis] for axis in order]}


_POOLS = (
    "nn.adaptive_avg_pool2d",
    "nn.avg_pool1d",
    "nn.avg_pool2d",
    "nn.avg_pool3d",
    "nn.max_pool1d",
    "nn.max_pool2d",
    "nn.max_pool3d",
)

CHANNELS_LAST: dict[str, Rule] = {
    **FOLLOWING,
    "relax.image.resize2d": resize,
    "relax.matmul": multiply_flat,
    "relax.reshape": reshape,
    **dict.fromkeys(("relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d"), convolve),
    **dict.fromkeys((f"relax.{name}" for name in _POOLS), pool),
}
