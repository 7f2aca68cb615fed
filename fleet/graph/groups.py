"""Pads the output channels of convolutions to whole vectors, in each group: 34 become 40, 21 become 24.

The weights of the added channels are zero, and their results are left out when the rest is written. A sixth more
arithmetic buys vectors where scalars were: ShuffleNet's grouped convolutions take half of their time, a convolution to
3 or to 1 channels a sixth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import te, topi
from tvm.relax import Call, Expr
from tvm.te import Tensor

from fleet.graph.constants import Array, array_of, constant
from fleet.graph.rebuilding import Rebuild, Rule

_VECTOR, _VECTORS = 8, 16
_MOST_WASTE = 1.2
_SLIGHT_WASTE = 1.02
"""Whole vectors of 8 are made whole vectors of 16 for that."""

_SLIGHT_WASTE_IN_GROUPS = 1.1
"""Waste that is acceptable in each of several groups: 136 channels are 17 vectors of 8, which no tile divides."""

_FEWEST = 16
"""Minimum size of several groups: smaller ones waste more than they gain. A single group of any size gains."""

FUSES_WITH_ELEMENTWISE = 4
"""TVM's number for operators that later element-wise ones are fused into (kOutEWiseFusable). It cannot tell by
itself."""


def pad_groups(rebuild: Rebuild, call: Call) -> Expr | None:
    """Return the number of output channels that a group should have; None if unchanged."""
    if str(call.attrs.data_layout) != "NHWC" or padded_width(rebuild, call) is None:
        return None
    return convolve_in_groups(rebuild, call, call.args[0], lambda data: data)


def padded_width(rebuild: Rebuild, call: Call) -> int | None:
    """Return the padded number of columns of each group; None if unchanged."""
    weights = array_of(rebuild, call.args[1])
    groups = int(call.attrs.groups)
    width = 0 if weights is None else weights.shape[-1] // groups
    return whole_vectors(width, groups) if width else None


def whole_vectors(width: int, groups: int = 1) -> int | None:
    """Return the padded number of columns of each group; None if no padding is needed."""
    if (groups > 1 and width < _FEWEST) or width % _VECTORS == 0:
        return None
    wide, narrow = (-(-width // size) * size for size in (_VECTORS, _VECTOR))
    if width == narrow:
        return wide if wide <= (_SLIGHT_WASTE if groups == 1 else _SLIGHT_WASTE_IN_GROUPS) * width else None
    return wide if wide <= _MOST_WASTE * width else narrow


def convolve_in_groups(rebuild: Rebuild, call: Call, data: Expr, read: Callable[[Tensor], Tensor]) -> Expr:
    """Return a convolution as one tensor program, its groups padded if that helps.

    Args:
        read: makes the convolution's data from `data`, within the program.
    """
    attrs, groups = call.attrs, int(call.attrs.groups)
    weights = array_of(rebuild, call.args[1])
    padded = padded_width(rebuild, call)
    where = [[int(n) for n in values] for values in (attrs.strides, attrs.padding, attrs.dilation)]

    def convolve(source: Tensor, kernel: Tensor) -> Tensor:
        result = topi.nn.conv(
            read(source), kernel, *where, groups, "NHWC", "HWIO", str(attrs.out_dtype or source.dtype)
        )
        if padded is None or weights is None:
            return result
        width = weights.shape[-1] // groups

        def kept(batch: te.Var, y: te.Var, x: te.Var, channel: te.Var) -> te.Expr:
            return result(batch, y, x, channel // width * padded + channel % width)

        return te.compute((*result.shape[:-1], groups * width), kept, name="unpad")

    kernel = call.args[1] if padded is None or weights is None else constant(_pad(weights, groups, padded))
    known = {} if padded is None else {"op_pattern": FUSES_WITH_ELEMENTWISE}
    return rebuild.builder.call_te(convolve, data, kernel, primfunc_name_hint="conv2d", primfunc_attrs=known)


def _pad(weights: Array, groups: int, padded: int) -> Array:
    """Pad weights [..., groups * width] to [..., groups * padded], with zeros after each group."""
    split = weights.reshape(*weights.shape[:-1], groups, -1)
    added = [(0, 0)] * (split.ndim - 1) + [(0, padded - split.shape[-1])]
    return np.pad(split, added).reshape(*weights.shape[:-1], groups * padded)


GROUPS: dict[str, Rule] = {"relax.nn.conv2d": pad_groups}
