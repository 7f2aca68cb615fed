"""Fuses root-mean-square norms, which exporters write as single operators, into one operator each.

x / sqrt(mean(x * x) + epsilon) * weight is an operator of its own in TVM, one program that reads a row once. As single
operators, the squares went through memory: TVM fuses nothing into the reduction that follows it.
"""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Call, Expr

from fleet.graph.constants import array_of, shape_of
from fleet.graph.rebuilding import Rebuild, Rule, op_name


def fuse_rms_norm(rebuild: Rebuild, call: Call) -> Expr | None:
    """Fuse a norm at its last operator, the multiplication by the weight."""
    x_shape, weight = shape_of(call.args[0]), array_of(rebuild, call.args[1])
    scaled = rebuild.call_only_for(call.args[0], "relax.multiply", "relax.divide")
    if scaled is None or weight is None or x_shape is None or weight.shape != x_shape[-1:]:
        return None
    is_product = op_name(scaled) == "relax.multiply"
    for x, factor in (scaled.args, scaled.args[::-1]) if is_product else (scaled.args,):
        square = _under_inverse_root(rebuild, factor) if is_product else _under_root(rebuild, factor)
        epsilon = None if square is None else _epsilon(rebuild, square, x)
        if epsilon is not None:
            return relax.op.nn.rms_norm(x, call.args[1], axes=-1, epsilon=epsilon)
    return None


def _under_inverse_root(rebuild: Rebuild, expr: Expr) -> Expr | None:
    """Return `a` of 1 / sqrt(a)."""
    call = rebuild.call_of(expr, "relax.rsqrt", "relax.divide")
    if call is None or op_name(call) == "relax.rsqrt":
        return None if call is None else call.args[0]
    one = array_of(rebuild, call.args[0])
    return _under_root(rebuild, call.args[1]) if one is not None and np.all(one == 1) else None


def _under_root(rebuild: Rebuild, expr: Expr) -> Expr | None:
    root = rebuild.call_of(expr, "relax.sqrt")
    return None if root is None else root.args[0]


def _epsilon(rebuild: Rebuild, expr: Expr, x: Expr) -> float | None:
    """Return epsilon of mean(x * x) + epsilon, the mean along the last axis; None if this is something else."""
    added = rebuild.call_of(expr, "relax.add")
    epsilon = None if added is None else array_of(rebuild, added.args[1])
    mean = None if added is None else rebuild.call_of(added.args[0], "relax.mean")
    square = None if mean is None else rebuild.call_of(mean.args[0], "relax.multiply")
    if mean is None or square is None or epsilon is None or epsilon.size != 1 or not mean.attrs.keepdims:
        return None
    axes = [int(axis) for axis in mean.attrs.axis or ()]
    is_last = axes in ([-1], [len(shape_of(x) or ()) - 1])
    is_square = all(rebuild.bound_to(factor).same_as(rebuild.bound_to(x)) for factor in square.args)
    return float(epsilon.reshape(())) if is_last and is_square else None


NORMS: dict[str, Rule] = {"relax.multiply": fuse_rms_norm}
