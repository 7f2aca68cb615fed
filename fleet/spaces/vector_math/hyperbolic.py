"""Inverse hyperbolic functions of float32, computed with log1p to keep the precision of small numbers."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.logarithms import log1p
from fleet.spaces.vector_math.names import Names, number

_LARGE = 1e9
"""Number from which on adding 1 to it, or to its square, changes nothing; the square may overflow."""


def asinh(names: Names, x: Expr) -> Expr:
    """Return the inverse hyperbolic sine."""
    size = names.name(tirx.abs(x))
    square = names.name(size * size)
    one = number(1.0)
    result = names.name(_log(names, size, size + square / (one + tirx.sqrt(square + one))))
    return tirx.Select(x < number(0.0), number(0.0) - result, result)


def acosh(names: Names, x: Expr) -> Expr:
    """Return the inverse hyperbolic cosine; NaN below 1."""
    over = names.name(x - number(1.0))
    result = _log(names, x, over + tirx.sqrt(over * number(2.0) + over * over))
    return tirx.Select(x < number(1.0), number(math.nan), result)


def atanh(names: Names, x: Expr) -> Expr:
    """Return the inverse hyperbolic tangent; NaN beyond 1."""
    size = names.name(tirx.abs(x))
    double = names.name(size + size)
    result = names.name(log1p(names, names.name(double / (number(1.0) - size))) * number(0.5))
    return tirx.Select(x < number(0.0), number(0.0) - result, result)


def _log(names: Names, size: Expr, over: Expr) -> Expr:
    """Return ln(1 + over), or ln(2 size) if the size is large."""
    is_large = size > number(_LARGE)
    result = log1p(names, names.name(tirx.Select(is_large, size, over)))
    return result + tirx.Select(is_large, number(math.log(2)), number(0.0))
