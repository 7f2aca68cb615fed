"""Exponentials of float32 as arithmetic: a power of two times a polynomial in the reduced exponent.

Results below the smallest normal number are 0. The polynomial of exp is from Cephes (S. Moshier); the others are
minimax fits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import Expr

from fleet.spaces.vector_math.names import Names, number, polynomial, power_of_two, within

_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""(e^r - 1 - r) / r^2 for |r| <= ln(2) / 2."""

_SINH = (2.816951222e-06, 1.983615978e-04, 8.333350058e-03, 1.66666665e-01)
"""(sinh(x) - x) / x^3 in x^2, for |x| <= 1."""

_SINH_LIMIT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Base:
    """Constants for the argument reduction of one base."""

    log2: float
    """Logarithm of the base to the base 2."""

    high: float
    """Leading digits of 1 / log2, few enough for exact multiples."""

    low: float
    """1 / log2 less `high`."""

    ln: float
    """Natural logarithm of the base."""

    smallest: float
    """Smallest exponent with a normal number as result."""

    largest: float
    """Exponent beyond which the result and the next power of two are infinite."""


_E = _Base(log2=1.44269504088896341, high=0.693359375, low=-2.12194440e-4, ln=1.0, smallest=-87.3365402, largest=89.0)
_TWO = _Base(log2=1.0, high=1.0, low=0.0, ln=0.693147180559945309, smallest=-126.0, largest=128.4)
_TEN = _Base(
    log2=3.32192809488736235,
    high=0.301025390625,
    low=4.60503898e-6,
    ln=2.30258509299404568,
    smallest=-37.9297791,
    largest=38.6,
)


def exp(names: Names, x: Expr) -> Expr:
    """Return e^x."""
    return _power(names, x, _E)


def exp2(names: Names, x: Expr) -> Expr:
    """Return 2^x."""
    return _power(names, x, _TWO)


def exp10(names: Names, x: Expr) -> Expr:
    """Return 10^x."""
    return _power(names, x, _TEN)


def sigmoid(names: Names, x: Expr) -> Expr:
    """Return 1 / (1 + e^-x)."""
    one = number(1.0)
    return one / (one + names.name(_power(names, names.name(number(0.0) - x), _E)))


def sinh(names: Names, x: Expr) -> Expr:
    """Return the hyperbolic sine."""
    size = names.name(tirx.abs(x))
    half = names.name(_power(names, size, _E, halvings=1))
    large = names.name(half - number(0.25) / half)
    square = names.name(x * x)
    small = x + x * square * polynomial(square, _SINH)
    signed = tirx.Select(x < number(0.0), number(0.0) - large, large)
    return tirx.Select(size < number(_SINH_LIMIT), small, signed)


def cosh(names: Names, x: Expr) -> Expr:
    """Return the hyperbolic cosine."""
    half = names.name(_power(names, names.name(tirx.abs(x)), _E, halvings=1))
    return half + number(0.25) / half


def _power(names: Names, x: Expr, base: _Base, *, halvings: int = 0) -> Expr:
    """Return a power of the base divided by 2^halvings, without overflow before the division."""
    inside = names.name(within(x, base.smallest, base.largest + halvings))
    step, rest = _reduced(names, inside, base)
    sum_ = polynomial(rest, _EXP) * rest * rest + rest + number(1.0)
    # Two factors: neither 2^128 nor 2^-127 is a normal float32.
    first = names.name((step - halvings) >> 1)
    second = step - halvings - first
    result = names.name(sum_ * power_of_two(first) * power_of_two(second))
    return tirx.Select(x < number(base.smallest), number(0.0), result)


def _reduced(names: Names, x: Expr, base: _Base) -> tuple[Expr, Expr]:
    """Return n (int32) and r (float32) with base^x = 2^n e^r."""
    step = names.name(tirx.floor(x * number(base.log2) + number(0.5)))
    rest = x - step * number(base.high)
    rest = rest - step * number(base.low) if base.low else rest
    rest = rest * number(base.ln) if base.ln != 1.0 else rest
    return names.name(tirx.Cast("int32", step)), names.name(rest)
