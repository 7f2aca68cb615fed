"""Logarithms of float32 as arithmetic: the exponent, and a polynomial in mantissa - 1 (a minimax fit)."""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.names import MANTISSA_BITS, SMALLEST_NORMAL, Names, number, polynomial

_LOG = (
    6.746641087e-02,
    -1.167565199e-01,
    1.188816209e-01,
    -1.240558888e-01,
    1.421955238e-01,
    -1.666799586e-01,
    2.000211866e-01,
    -2.50000096e-01,
    3.33333126e-01,
)
"""(ln(1 + f) - f + f^2 / 2) / f^3 for 1 + f from sqrt(1/2) to sqrt(2)."""

_SQRT_HALF_BITS = 0x3F3504F3
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_LOG10_2_HIGH, _LOG10_2_LOW = 0.301025390625, 4.60503898e-6


def log(names: Names, x: Expr) -> Expr:
    """Return the natural logarithm."""
    step, over = _split(names, x)
    return _checked(x, _ln(names, over, step * number(_LN2_LOW)) + step * number(_LN2_HIGH))


def log2(names: Names, x: Expr) -> Expr:
    """Return the logarithm to the base 2."""
    step, over = _split(names, x)
    return _checked(x, _ln(names, over, number(0.0)) * number(1 / math.log(2)) + step)


def log10(names: Names, x: Expr) -> Expr:
    """Return the logarithm to the base 10."""
    step, over = _split(names, x)
    own = _ln(names, over, number(0.0)) * number(1 / math.log(10)) + step * number(_LOG10_2_LOW)
    return _checked(x, own + step * number(_LOG10_2_HIGH))


def log1p(names: Names, x: Expr) -> Expr:
    """Return ln(1 + x), precise also for small x."""
    sum_ = names.name(x + number(1.0))
    lost = x - names.name(sum_ - number(1.0))
    step, over = _split(names, sum_)
    is_near = names.name(tirx.EQ(step, number(0.0)))
    exact = names.name(tirx.Select(is_near, x, over))
    correction = names.name(tirx.Select(is_near, number(0.0), lost / sum_))
    own = _ln(names, exact, step * number(_LN2_LOW) + correction) + step * number(_LN2_HIGH)
    return _checked(sum_, own)


def _split(names: Names, x: Expr) -> tuple[Expr, Expr]:
    """Return n and f (float32) with x = 2^n (1 + f), for positive x."""
    is_tiny = names.name(x < number(SMALLEST_NORMAL))
    normal = names.name(tirx.Select(is_tiny, x * number(2.0**MANTISSA_BITS), x))
    bits = names.name(tirx.reinterpret("int32", normal))
    step = names.name((bits - _SQRT_HALF_BITS) >> MANTISSA_BITS)
    mantissa = tirx.reinterpret("float32", bits - (step << MANTISSA_BITS))
    shift = tirx.Select(is_tiny, number(float(MANTISSA_BITS)), number(0.0))
    return names.name(tirx.Cast("float32", step) - shift), names.name(mantissa - number(1.0))


def _ln(names: Names, over: Expr, small: Expr) -> Expr:
    """Return ln(1 + over) + small."""
    square = names.name(over * over)
    return names.name(over + (square * over * polynomial(over, _LOG) + small - square * number(0.5)))


def _checked(x: Expr, result: Expr) -> Expr:
    """Return a logarithm with the right values for 0, infinity, negative numbers and NaN."""
    infinity = number(math.inf)
    positive = tirx.Select(x < infinity, result, infinity)
    others = tirx.Select(tirx.EQ(x, number(0.0)), number(-math.inf), number(math.nan))
    return tirx.Select(x > number(0.0), positive, others)
