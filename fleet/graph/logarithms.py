"""Computes log(1 + x) without the rounding of 1 + x, which loses small x: softplus(-20) is 2e-9, and came out as 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import te, tirx
from tvm.relax import Call, Expr

from fleet.graph.constants import array_of, dtype_of
from fleet.graph.rebuilding import Rebuild, Rule


def log_of_sum(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute the logarithm of 1 + x, which is how ONNX models get their softplus."""
    total = rebuild.call_of(call.args[0], "relax.add")
    if total is None or dtype_of(call.args[0]) != "float32":
        return None
    for one, rest in (total.args, reversed(total.args)):
        number = array_of(rebuild, one)
        if number is not None and number.size == 1 and np.all(number == 1):
            return _elementwise(rebuild, rest, tirx.log1p, "log1p")
    return None


def softplus(rebuild: Rebuild, call: Call) -> Expr | None:
    """Compute log(1 + exp(beta * x)) / beta, or x above the threshold."""
    if dtype_of(call.args[0]) != "float32":
        return None
    beta, threshold = (tirx.const(float(value), "float32") for value in (call.attrs.beta, call.attrs.threshold))

    def one(x: Expr) -> Expr:
        return tirx.Select(x * beta > threshold, x, tirx.log1p(tirx.exp(x * beta)) / beta)

    return _elementwise(rebuild, call.args[0], one, "softplus")


def _elementwise(rebuild: Rebuild, expr: Expr, function: Callable[[Expr], Expr], name: str) -> Expr:
    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *at: function(data[at]), name=name)

    return rebuild.builder.call_te(compute, expr, primfunc_name_hint=name)


LOGARITHMS: dict[str, Rule] = {"relax.log": log_of_sum, "relax.nn.softplus": softplus}
"""Logarithms of 1 + x. For processors: their vector code has log1p."""
