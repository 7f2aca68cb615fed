"""Clip pooling windows to their input: some exporters write a window of 1280 x 1280 for an image of 7 x 7.

With `ceil_mode` such a window gives one result, from its part inside the padded input; with padding of its own size it
gives as many results as the input has numbers. Without clipping, programs pad the input to the window's size and by
another stride: 8.4 GB for 1,280 channels.
"""

from __future__ import annotations

from tvm.relax import Call, Expr

from fleet.graph.constants import shape_of
from fleet.graph.rebuilding import Rebuild, Rule, with_attrs


def cut_window(_rebuild: Rebuild, call: Call) -> Expr | None:
    """Clip a window that covers the padded input to its size, with a stride of 1. The single result stays the same."""
    attrs, shape = call.attrs, shape_of(call.args[0])
    layout = str(attrs.layout)
    axes = [layout.index(axis) for axis in "DHW" if axis in layout]
    if shape is None or len(layout) != len(shape) or len(axes) != len(attrs.pool_size):
        return None
    padding = [int(size) for size in attrs.padding]
    sizes, strides = [int(size) for size in attrs.pool_size], [int(step) for step in attrs.strides]
    counts_padding = bool(getattr(attrs, "count_include_pad", False))
    for place, axis in enumerate(axes):
        if int(attrs.dilation[place]) == 1 and not counts_padding:
            _cut_padding(shape[axis], place, sizes, strides, padding)
        whole = shape[axis] + padding[place] + padding[place + len(axes)]
        step = int(attrs.dilation[place])
        beyond = (sizes[place] - 1) * step + 1 - whole
        if 0 <= beyond < strides[place]:  # windows that exceed it by a stride or more have no result
            sizes[place], strides[place] = (whole - 1) // step + 1, 1
    changed: dict[str, object] = {"pool_size": sizes, "strides": strides, "padding": padding}
    if all([int(number) for number in getattr(attrs, name)] == numbers for name, numbers in changed.items()):
        return None
    return with_attrs(call, list(call.args), changed)


def _cut_padding(size: int, place: int, sizes: list[int], strides: list[int], padding: list[int]) -> None:
    """Remove the outermost numbers of all windows along one axis where they lie in the padding of each window."""
    low, high = place, place + len(sizes)
    steps = -((sizes[place] - size - padding[low] - padding[high]) // strides[place])
    last = steps * strides[place] - padding[low]  # start of the last window; the input starts at 0
    for side, excess in ((low, -last), (high, sizes[place] - padding[low] - size)):
        cut = min(max(excess, 0), padding[side])
        sizes[place] -= cut
        padding[side] -= cut


POOLING: dict[str, Rule] = {f"relax.nn.{kind}_pool{rank}d": cut_window for kind in ("avg", "max") for rank in (1, 2, 3)}
