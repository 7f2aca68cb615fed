"""Inverse trigonometric functions of float32 as arithmetic. Polynomials are minimax fits."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.names import Names, number, polynomial

_ATAN = (
    -1.7936223e-03,
    1.091460849e-02,
    -3.117785115e-02,
    5.795759909e-02,
    -8.403450664e-02,
    1.095218589e-01,
    -1.42642417e-01,
    1.999854829e-01,
    -3.333329909e-01,
)
"""(atan(x) - x) / x^3 in x^2, for |x| <= 1."""

_ASIN = (4.222596173e-02, 2.414664775e-02, 4.547654666e-02, 7.495252643e-02, 1.666675348e-01)
"""(asin(x) - x) / x^3 in x^2, for |x| <= 1/2."""


def atan(names: Names, x: Expr) -> Expr:
    """Return the arctangent."""
    size = names.name(tirx.abs(x))
    is_steep = names.name(size > number(1.0))
    slope = names.name(tirx.Select(is_steep, number(1.0) / size, size))
    square = names.name(slope * slope)
    angle = names.name(slope + slope * square * polynomial(square, _ATAN))
    result = names.name(tirx.Select(is_steep, number(math.pi / 2) - angle, angle))
    return tirx.Select(x < number(0.0), number(0.0) - result, result)


def asin(names: Names, x: Expr) -> Expr:
    """Return the arcsine; NaN outside of [-1, 1]."""
    size = names.name(tirx.abs(x))
    is_steep, angle = _half(names, size)
    result = names.name(tirx.Select(is_steep, number(math.pi / 2) - number(2.0) * angle, angle))
    return tirx.Select(x < number(0.0), number(0.0) - result, result)


def acos(names: Names, x: Expr) -> Expr:
    """Return the arccosine; NaN outside of [-1, 1]."""
    size = names.name(tirx.abs(x))
    is_steep, angle = _half(names, size)
    double = names.name(number(2.0) * angle)
    is_negative = names.name(x < number(0.0))
    steep = tirx.Select(is_negative, number(math.pi) - double, double)
    flat = tirx.Select(is_negative, number(math.pi / 2) + angle, number(math.pi / 2) - angle)
    return tirx.Select(is_steep, steep, flat)


def _half(names: Names, size: Expr) -> tuple[Expr, Expr]:
    """Return (True, acos(size) / 2) for a size above 1/2, else (False, asin(size))."""
    is_steep = names.name(size > number(0.5))
    other = names.name((number(1.0) - size) * number(0.5))
    square = names.name(tirx.Select(is_steep, other, size * size))
    base = names.name(tirx.Select(is_steep, tirx.sqrt(other), size))
    return is_steep, names.name(base + base * square * polynomial(square, _ASIN))
