"""Trigonometric functions of float32 as arithmetic, for angles of any size.

Argument reduction uses integers: the mantissa is multiplied by the 96 bits of 2 / pi that matter for its exponent
(Payne and Hanek, Radian Reduction for Trigonometric Functions). Large angles need neither a branch nor a table in
memory. Polynomials are minimax fits.
"""

from __future__ import annotations

import itertools
import math

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.names import MANTISSA_BITS, Names, number, polynomial

_SIN = (-1.951397996e-04, 8.332151332e-03, -1.666665446e-01)
"""(sin(r) - r) / r^3 in r^2, for |r| <= pi / 4."""

_COS = (2.443166815e-05, -1.388730346e-03, 4.166664546e-02)
"""(cos(r) - 1 + r^2 / 2) / r^4 in r^2."""

_TWO_OVER_PI = (0x0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
"""Fraction bits of 2 / pi, after 32 zero bits for angles of less than a few million."""

_FIRST_EXPONENT = 120
"""Biased exponent of the smallest reduced angle, less than pi / 4: its window starts at the first bit."""

_MOST_WORDS = 5
"""Number of start positions of the four-word window: exponents end at 254."""

_WORD_BITS = 32


def sin(names: Names, x: Expr) -> Expr:
    """Return the sine."""
    quarters, rest = _reduced(names, x)
    sine, cosine = _sine_and_cosine(names, rest)
    return _turned(tirx.Select(_bit(quarters, 0), cosine, sine), _bit(quarters, 1))


def cos(names: Names, x: Expr) -> Expr:
    """Return the cosine."""
    quarters, rest = _reduced(names, x)
    sine, cosine = _sine_and_cosine(names, rest)
    shifted = names.name(quarters + number(1, "int32"))
    return _turned(tirx.Select(_bit(quarters, 0), sine, cosine), _bit(shifted, 1))


def tan(names: Names, x: Expr) -> Expr:
    """Return the tangent."""
    quarters, rest = _reduced(names, x)
    sine, cosine = _sine_and_cosine(names, rest)
    is_odd = names.name(_bit(quarters, 0))
    above = tirx.Select(is_odd, number(0.0) - cosine, sine)
    return above / tirx.Select(is_odd, sine, cosine)


def _sine_and_cosine(names: Names, x: Expr) -> tuple[Expr, Expr]:
    square = names.name(x * x)
    sine = names.name(x + x * square * polynomial(square, _SIN))
    cosine = names.name(square * square * polynomial(square, _COS) - square * number(0.5) + number(1.0))
    return sine, cosine


def _turned(value: Expr, is_negative: Expr) -> Expr:
    return tirx.Select(is_negative, number(0.0) - value, value)


def _bit(value: Expr, place: int) -> Expr:
    mask = number(1 << place, "int32")
    return tirx.EQ(value & mask, mask)


def _reduced(names: Names, x: Expr) -> tuple[Expr, Expr]:
    """Return q (int32) and r (float32, |r| <= pi / 4) with x = q pi / 2 + r; r is NaN for infinite x or NaN."""
    size_bits = names.name(tirx.reinterpret("uint32", x) & _unsigned(0x7FFFFFFF))
    exponent = tirx.Cast("int32", size_bits >> _unsigned(MANTISSA_BITS))
    mantissa = names.name((size_bits & _unsigned(0x7FFFFF)) | _unsigned(0x800000))
    offset = names.name(tirx.max(exponent - _FIRST_EXPONENT, number(0, "int32")))
    first, second, third = _window(names, offset)
    high = tirx.Cast("uint64", mantissa * first) << number(_WORD_BITS, "uint64")
    wide = names.name(tirx.Cast("uint64", mantissa))
    low = (wide * tirx.Cast("uint64", third)) >> number(_WORD_BITS, "uint64")
    turns = names.name(high + wide * tirx.Cast("uint64", second) + low)  # 2 bits of right angles, 62 bits of fraction
    quarters = names.name((turns + number(1 << 61, "uint64")) >> number(62, "uint64"))
    part = names.name(turns - (quarters << number(62, "uint64")))
    upper = tirx.Cast("int32", tirx.Cast("uint32", part >> number(_WORD_BITS, "uint64")))
    lower = tirx.Cast("int32", tirx.Cast("uint32", part & number(0xFFFFFFFF, "uint64")) >> _unsigned(1))
    turned = tirx.Cast("float64", upper) * number(2.0**31, "float64") + tirx.Cast("float64", lower)
    angle = names.name(tirx.Cast("float32", turned * number(math.pi / 2 * 2.0**-61, "float64")))
    is_negative = names.name(x < number(0.0))
    is_small = names.name(size_bits < _unsigned(0x3F490FDB))  # pi / 4
    count = tirx.Cast("int32", quarters)
    signed_count = tirx.Select(is_negative, number(0, "int32") - count, count)
    rest = tirx.Select(is_small, x, _turned(angle, is_negative))
    is_angle = size_bits < _unsigned(0x7F800000)
    return (
        names.name(tirx.Select(is_small, number(0, "int32"), signed_count)),
        names.name(tirx.Select(is_angle, rest, number(math.nan))),
    )


def _window(names: Names, offset: Expr) -> tuple[Expr, Expr, Expr]:
    """Return 96 bits of 2 / pi from a bit offset."""
    place = names.name(offset >> 5)
    shift = names.name(tirx.Cast("uint32", offset & 31))
    words = []
    for index in range(4):
        word = _unsigned(_TWO_OVER_PI[index + _MOST_WORDS - 1])
        for start in reversed(range(_MOST_WORDS - 1)):
            word = tirx.Select(tirx.EQ(place, number(start, "int32")), _unsigned(_TWO_OVER_PI[index + start]), word)
        words.append(names.name(word))
    opposite = names.name(_unsigned(_WORD_BITS - 1) - shift)
    joined = [
        names.name((left << shift) | ((right >> _unsigned(1)) >> opposite)) for left, right in itertools.pairwise(words)
    ]
    return joined[0], joined[1], joined[2]


def _unsigned(value: int) -> Expr:
    return number(value, "uint32")
