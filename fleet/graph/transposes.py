"""Transposes that move the last axes to the front, as in a logical NCHW view of a channels-last tensor.

`axes` as in numpy: axis i of the result is axis `axes[i]` of the source. NHWC seen as NCHW is [0, 3, 1, 2]: the last
axis moved to place 1. Channels may have been split into several axes, which then are moved together.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.rebuilding import Rebuild, op_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """View of a tensor with its last axes moved to the front."""

    source: Expr
    """Its layout in memory."""

    axes: list[int]
    first: int
    """Positions of the moved axes in the result."""

    count: int
    """Number of moved axes, at least 1."""

    def order_among_moved(self) -> list[int]:
        """Return the axes of a transpose of the source that puts the moved axes into the order of the result."""
        rest = len(self.axes) - self.count
        return [*range(rest), *self.axes[self.first : self.first + self.count]]


def moved_of(rebuild: Rebuild, expr: Expr) -> Moved | None:
    """Return the source of a transposed value, or None unless the transpose brings last axes to the front and keeps the
    others."""
    call = rebuild.call_of(expr, "relax.permute_dims")
    if call is None:
        return None
    axes = transposed_axes(call)
    block = _moved_block(axes)
    return Moved(source=call.args[0], axes=axes, first=block[0], count=block[1]) if block else None


def transposed(expr: Expr, axes: list[int]) -> Expr:
    """Return a transposed expression, or the expression itself if nothing changes."""
    return expr if axes == sorted(axes) else relax.op.permute_dims(expr, axes)


def transposed_to(rebuild: Rebuild, tensor: Expr, layout: str, to_layout: str) -> Expr:
    """Return a tensor of one layout, "NCHW", in another one, "NHWC"."""
    return rebuild.emit(transposed(tensor, [layout.index(axis) for axis in to_layout]))


def transposed_axes(call: Call) -> list[int]:
    """Return the axes of a transpose; without an attribute it reverses all of them."""
    rank = int(call.args[0].ty.ndim)
    axes = call.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]


def is_reshape(call: Call, shape: tuple[int, ...]) -> bool:
    """Tell whether a transpose of a tensor of this shape moves only axes of size 1, and so nothing in memory."""
    kept = [axis for axis in transposed_axes(call) if shape[axis] > 1]
    return op_name(call) == "relax.permute_dims" and kept == sorted(kept)


def _moved_block(axes: list[int]) -> tuple[int, int] | None:
    """Return the position and number of the moved axes: the fewest for which the others keep their order.

    Several axes moved over a single one are none: that is this one moved the other way, from channels first to last.
    """
    rank = len(axes)
    for count in range(1, rank):
        first = min(axes.index(axis) for axis in range(rank - count, rank))
        block, others = axes[first : first + count], axes[:first] + axes[first + count :]
        passed = rank - first - count
        if passed > (count > 1) and min(block) >= rank - count and others == sorted(others):
            return first, count
    return None
