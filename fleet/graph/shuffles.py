"""Folds channel shuffles, as in ShuffleNet, into the following convolutions; otherwise each tensor is moved twice.

A shuffle splits the channels into [parts, size], swaps the two and joins them again. It commutes with whatever computes
channel by channel when that one's constants are shuffled the other way, so it is moved behind depthwise convolutions,
biases and activations. A convolution takes it into the order of its weights; a grouped one, where an output channel
reads some channels only, into the indices by which it reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax, te
from tvm.relax import Call, Expr
from tvm.te import Tensor

from fleet.graph.constants import Array, array_of, constant, shape_of
from fleet.graph.groups import convolve_in_groups
from fleet.graph.rebuilding import Rebuild, Rule
from fleet.graph.transposes import transposed_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffle:
    """Channel i of the shuffled tensor is channel (i % parts) * size + i // parts of the source, channels last."""

    source: Expr
    shape: tuple[int, ...]
    parts: int
    size: int

    def restore(self, by_channel: Array) -> Array:
        """Return values of the shuffled channels (last axis) in the source's order."""
        split = by_channel.reshape(*by_channel.shape[:-1], self.size, self.parts)
        return np.ascontiguousarray(np.swapaxes(split, -1, -2)).reshape(by_channel.shape)


def convolve(rebuild: Rebuild, call: Call) -> Expr | None:
    """Fold a shuffle into a convolution's weights or indices, or move it behind a depthwise one."""
    shuffle, weights = shuffle_of(rebuild, call.args[0]), array_of(rebuild, call.args[1])
    if shuffle is None or weights is None or str(call.attrs.data_layout) != "NHWC":
        return None
    groups = int(call.attrs.groups)
    if groups == 1:
        inputs_last = np.swapaxes(weights, 2, 3)  # HWIO to HWOI
        restored = np.swapaxes(shuffle.restore(inputs_last), 2, 3)
        return relax.Call(call.op, [shuffle.source, constant(restored)], call.attrs)
    if groups == shuffle.parts * shuffle.size == weights.shape[3]:
        restored = shuffle.restore(weights)
        return _shuffled(rebuild, relax.Call(call.op, [shuffle.source, constant(restored)], call.attrs), shuffle)
    return _grouped(rebuild, call, shuffle)


def by_channel(rebuild: Rebuild, call: Call) -> Expr | None:
    """Move a shuffle behind an operator that combines it with a constant per channel."""
    shuffle, value = shuffle_of(rebuild, call.args[0]), array_of(rebuild, call.args[1])
    if shuffle is None or value is None or value.ndim > len(shuffle.shape):
        return None
    if value.size > 1 and value.size != value.shape[-1]:
        return None
    value = shuffle.restore(value) if value.size > 1 else value
    return _shuffled(rebuild, relax.Call(call.op, [shuffle.source, constant(value)], call.attrs), shuffle)


def activate(rebuild: Rebuild, call: Call) -> Expr | None:
    """Move a shuffle behind an activation."""
    shuffle = shuffle_of(rebuild, call.args[0])
    if shuffle is None:
        return None
    args = [shuffle.source, *list(call.args)[1:]]
    return _shuffled(rebuild, relax.Call(call.op, args, call.attrs), shuffle)


def shuffle_of(rebuild: Rebuild, expr: Expr) -> Shuffle | None:
    """Return the shuffle that a value results from, or None."""
    join = rebuild.call_of(expr, "relax.reshape")
    swap = rebuild.call_of(join.args[0], "relax.permute_dims") if join is not None else None
    split = rebuild.call_of(swap.args[0], "relax.reshape") if swap is not None else None
    if join is None or swap is None or split is None:
        return None
    shape, swapped = shape_of(split.args[0]), shape_of(join.args[0])
    if shape is None or swapped is None or shape != shape_of(expr) or shape[:-1] != swapped[:-2]:
        return None
    rank = len(swapped)
    if transposed_axes(swap) != [*range(rank - 2), rank - 1, rank - 2]:
        return None
    return Shuffle(source=split.args[0], shape=shape, parts=swapped[-1], size=swapped[-2])


def _shuffled(rebuild: Rebuild, expr: Expr, shuffle: Shuffle) -> Expr:
    """Return a value shuffled in the same way as another one."""
    source = rebuild.emit(expr)
    shape = shape_of(source) or shuffle.shape
    rank = len(shape) + 1
    split = rebuild.emit(relax.op.reshape(source, (*shape[:-1], shuffle.parts, shuffle.size)))
    swapped = rebuild.emit(relax.op.permute_dims(split, [*range(rank - 2), rank - 1, rank - 2]))
    return relax.op.reshape(swapped, shape)


def _grouped(rebuild: Rebuild, call: Call, shuffle: Shuffle) -> Expr:
    """Return a grouped convolution that reads shuffled data, as one tensor program."""

    def shuffled(data: Tensor) -> Tensor:
        def read(*index: te.Var) -> te.Expr:
            *others, channel = index
            return data(*others, channel % shuffle.parts * shuffle.size + channel // shuffle.parts)

        return te.compute(data.shape, read, name="shuffle")

    return convolve_in_groups(rebuild, call, shuffle.source, shuffled)


SHUFFLES: dict[str, Rule] = {
    "relax.nn.conv2d": convolve,
    **dict.fromkeys(("relax.add", "relax.multiply"), by_channel),
    **dict.fromkeys(("relax.clip", "relax.nn.relu", "relax.nn.silu", "relax.sigmoid"), activate),
}
