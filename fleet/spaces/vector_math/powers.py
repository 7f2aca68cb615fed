"""Powers of float32 as arithmetic: products for integer exponents, roots for halves, float64 logarithms for others.

Signs, zeros, infinities and NaN match C's `powf`. Polynomials are minimax fits.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import FloatImm

from fleet.spaces.vector_math.names import Names, number, polynomial, within

_LARGEST_SINGLE, _LEAST_SINGLE = 5, -3
"""Range of exponents for which the rounding errors of float32 products stay within 4 ulp."""

_LARGEST_WHOLE = 64
"""Largest integer exponent for products; beyond it a logarithm is cheaper."""

_LOG2 = (0.3409379805, 0.4116619532, 0.5770837557, 0.9617966725, 2.885390082)
"""log2((1 + s) / (1 - s)) / s in s^2, for quotients from sqrt(1/2) to sqrt(2)."""

_EXP2 = (
    1.519593165e-05,
    1.546700853e-04,
    1.333393807e-03,
    9.618037406e-03,
    5.55041036e-02,
    2.402265107e-01,
    6.931471807e-01,
)
"""(2^r - 1) / r for |r| <= 1/2."""

_DOUBLE = "float64"
_MANTISSA_BITS, _BIAS = 52, 1023
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_LIMIT = 300.0
"""Bound on the binary exponent: 2^300 and 2^-300 are infinite and zero in float32, but finite in float64."""


def power(names: Names, x: Expr, exponent: Expr) -> Expr:
    """Return x^exponent."""
    if not isinstance(exponent, FloatImm):
        return _general(names, x, names.name(exponent))
    value = float(exponent.value)
    if value == int(value if math.isfinite(value) else 0.5) and abs(value) <= _LARGEST_WHOLE:
        return _whole(names, x, int(value))
    if abs(value) == 0.5:
        return _half(names, x, is_inverse=value < 0)
    return _general(names, x, exponent)


def _whole(names: Names, x: Expr, exponent: int) -> Expr:
    count = abs(exponent)
    if exponent == 0:
        return number(1.0)  # also for NaN
    if _LEAST_SINGLE <= exponent <= _LARGEST_SINGLE:
        return _product(names, x if exponent > 0 else names.name(number(1.0) / x), count)
    product = _product(names, names.name(tirx.Cast(_DOUBLE, x)), count)
    return tirx.Cast("float32", product if exponent > 0 else number(1.0, _DOUBLE) / product)


def _product(names: Names, x: Expr, count: int) -> Expr:
    """Return x^count for a positive integer, by repeated squaring."""
    result, square = None, x
    while True:
        if count & 1:
            result = square if result is None else names.name(result * square)
        count >>= 1
        if not count:
            return result
        square = names.name(square * square)


def _half(names: Names, x: Expr, *, is_inverse: bool) -> Expr:
    """Return the root or its inverse. Unlike `sqrt`, the root of -0 is 0 and the root of -inf is inf."""
    root = names.name(tirx.abs(tirx.sqrt(x)))
    result = names.name(number(1.0) / root) if is_inverse else root
    return tirx.Select(tirx.EQ(x, number(-math.inf)), number(0.0 if is_inverse else math.inf), result)


def _general(names: Names, x: Expr, exponent: Expr) -> Expr:
    size = names.name(tirx.abs(x))
    wide = names.name(tirx.Cast(_DOUBLE, exponent))
    product = names.name(_log2(names, names.name(tirx.Cast(_DOUBLE, size))) * wide)
    result = names.name(tirx.Cast("float32", _exp2(names, product)))
    unit = number(1.0)
    result = names.name(tirx.Select(tirx.EQ(size, unit), unit, result))  # also to an infinite power
    # An exponent is an integer if it equals its floor, and odd if its half is not an integer. All large ones are even.
    is_whole = names.name(tirx.EQ(tirx.floor(exponent), exponent))
    half = names.name(exponent * number(0.5))
    is_odd = tirx.all(is_whole, tirx.NE(tirx.floor(half), half))
    is_negative = names.name(tirx.reinterpret("int32", x) < number(0, "int32"))
    signed = names.name(tirx.Select(tirx.all(is_negative, is_odd), number(-1.0) * result, result))
    is_none = tirx.all(x < number(0.0), x > number(-math.inf), tirx.Not(is_whole))
    checked = names.name(tirx.Select(is_none, number(math.nan), signed))
    is_number = tirx.all(_is_number(x), _is_number(exponent))
    checked = names.name(tirx.Select(is_number, checked, number(math.nan)))
    return tirx.Select(tirx.any(tirx.EQ(exponent, number(0.0)), tirx.EQ(x, unit)), unit, checked)


def _is_number(x: Expr) -> Expr:
    """Tell whether a float32 is not NaN, by its bits: TVM simplifies x == x to true."""
    return (tirx.reinterpret("int32", x) & number(0x7FFFFFFF, "int32")) <= number(0x7F800000, "int32")


def _log2(names: Names, x: Expr) -> Expr:
    """Return log2 of a widened positive float32, precise to 35 bits; -inf for 0, inf for inf."""
    bits = names.name(tirx.reinterpret("int64", x))
    shift = number(_MANTISSA_BITS, "int64")
    step = names.name((bits - number(_SQRT_HALF_BITS, "int64")) >> shift)
    mantissa = names.name(tirx.reinterpret(_DOUBLE, bits - (step << shift)))
    one = number(1.0, _DOUBLE)
    ratio = names.name((mantissa - one) / (mantissa + one))
    square = names.name(ratio * ratio)
    whole = tirx.Cast(_DOUBLE, tirx.Cast("int32", step))
    result = names.name(whole + ratio * polynomial(square, _LOG2))
    infinity = number(math.inf, _DOUBLE)
    finite = tirx.Select(x < infinity, result, infinity)
    return names.name(tirx.Select(x > number(0.0, _DOUBLE), finite, number(-math.inf, _DOUBLE)))


def _exp2(names: Names, x: Expr) -> Expr:
    inside = names.name(within(x, -_LIMIT, _LIMIT))
    step = names.name(tirx.floor(inside + number(0.5, _DOUBLE)))
    rest = names.name(inside - step)
    sum_ = polynomial(rest, _EXP2) * rest + number(1.0, _DOUBLE)
    exponent = tirx.Cast("int64", tirx.Cast("int32", step)) + number(_BIAS, "int64")
    return sum_ * tirx.reinterpret(_DOUBLE, exponent << number(_MANTISSA_BITS, "int64"))
