"""Clamps indices that are computed or come from outside to the tensor's bounds.

TVM checks none: a token that the table of an embedding does not have reads whatever lies behind it, and a scatter
writes there. Engines that run operator by operator refuse such a number; a program that is compiled can say nothing, so
it takes the nearest element. Constant indices were looked at when the model was imported.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.constants import Array, array_of, dtype_of, operand, shape_of
from fleet.graph.rebuilding import Rebuild, Rule, op_name, with_attrs


def take_nearest(rebuild: Rebuild, call: Call) -> Expr | None:
    """Have `take` clamp each index to its axis."""
    if call.attrs.mode != "fast" or array_of(rebuild, call.args[1]) is not None:
        return None
    return with_attrs(call, list(call.args), {"mode": "clip"})


def within_axis(rebuild: Rebuild, call: Call) -> Expr | None:
    """Clamp the indices along one axis to its bounds."""
    shape = shape_of(call.args[0])
    return None if shape is None else _within(rebuild, call, np.array(shape[int(call.attrs.axis)]))


def within_shape(rebuild: Rebuild, call: Call) -> Expr | None:
    """Clamp the coordinates in the last axis, one for each of the tensor's axes after those of the batch."""
    shape, of_indices = (shape_of(arg) for arg in call.args[:2])
    if shape is None or of_indices is None:
        return None
    first = int(getattr(call.attrs, "batch_dims", 0))
    return _within(rebuild, call, np.array(shape[first : first + of_indices[-1]]))


def _within(rebuild: Rebuild, call: Call, sizes: Array) -> Expr | None:
    """Return the call with indices clamped to [0, size), or to [-size, size) if negative ones count from the end."""
    data, indices, *others = call.args
    if array_of(rebuild, indices) is not None:
        return None
    sizes = sizes.astype(dtype_of(indices))
    least = -sizes if op_name(call) == "relax.scatter_elements" else np.zeros_like(sizes)
    below = rebuild.bind(relax.op.minimum(indices, operand(sizes - 1, indices)))
    return rebuild.bind(
        relax.Call(call.op, [data, rebuild.bind(relax.op.maximum(below, operand(least, below))), *others], call.attrs)
    )


BOUNDS: dict[str, Rule] = {
    "relax.take": take_nearest,
    "relax.gather_elements": within_axis,
    "relax.scatter_elements": within_axis,
    "relax.gather_nd": within_shape,
    "relax.scatter_nd": within_shape,
}
