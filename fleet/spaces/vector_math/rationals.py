"""Odd functions with limit 1 as float32 quotients of polynomials: minimax fits of the relative error.

Away from 0 a function is computed as 2 t / (1 + t^2) from another function t: close to 1, errors of t hardly matter.
With t = n / d this is 2 n d / (d^2 + n^2), which takes a single division.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.names import Names, number, polynomial, within

_TANH_BORDER = 0.6
_TANH_SMALL = (-5.892876854e-03, 2.079416528e-02, -5.378334301e-02, 1.333191902e-01, -3.333329784e-01)
"""(tanh(x) - x) / x^3 in x^2, up to the border."""

_TANH_LIMIT = 9.02
"""Argument beyond which float32 rounds the result to 1."""

_TANH_ABOVE = (5.690634786e-05, 1.487604482e-02, 4.999999838e-01)
_TANH_BELOW = (1.220415325e-06, 1.204315297e-03, 1.130853358e-01, 1.0)
"""tanh(x / 2) / x in x^2."""

_ERF_BORDER = 0.5
_ERF_SMALL = (4.729767521e-03, -2.676383159e-02, 1.128294731e-01, -3.761261712e-01, 2 / math.sqrt(math.pi))
"""erf(x) / x in x^2, up to the border."""

_ERF_LIMIT = 3.93
_ERF_ABOVE = (-3.321800309e-06, 3.114926137e-04, 9.937298181e-03, 7.985902311e-02, 5.641894016e-01)
_ERF_BELOW = (2.235624754e-03, 3.563435095e-02, 1.565683425e-01, 1.0)
"""tanh(atanh(erf(x)) / 2) / x in x^2."""


def tanh(names: Names, x: Expr) -> Expr:
    """Return the hyperbolic tangent."""
    square = names.name(x * x)
    small = names.name(x + x * square * polynomial(square, _TANH_SMALL))
    large = names.name(_doubled(names, x, _TANH_LIMIT, _TANH_ABOVE, _TANH_BELOW))
    return tirx.Select(tirx.abs(x) < number(_TANH_BORDER), small, large)


def erf(names: Names, x: Expr) -> Expr:
    """Return the error function."""
    small = names.name(x * polynomial(names.name(x * x), _ERF_SMALL))
    large = names.name(_doubled(names, x, _ERF_LIMIT, _ERF_ABOVE, _ERF_BELOW))
    return tirx.Select(tirx.abs(x) < number(_ERF_BORDER), small, large)


def _doubled(names: Names, x: Expr, limit: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """Return 2 t / (1 + t^2) with t = x * above(x^2) / below(x^2), constant beyond a limit."""
    inside = names.name(within(x, -limit, limit))
    square = names.name(inside * inside)
    top, bottom = names.name(inside * polynomial(square, above)), names.name(polynomial(square, below))
    half = names.name(top * bottom)
    return (half + half) / (bottom * bottom + top * top)
