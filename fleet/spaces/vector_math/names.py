"""Building blocks of functions as arithmetic: named intermediate results, constants and polynomials."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Let, Var, const

MANTISSA_BITS = 23
EXPONENT_BIAS = 127
"""Parameters of float32."""

SMALLEST_NORMAL = 2.0**-126
"""Smallest normal float32. Smaller numbers have fewer digits and are slow (a causal softmax took twice as long)."""


class Names:
    """Intermediate results in order of computation. Each is computed once, also if it is used several times."""

    def __init__(self) -> None:
        self._bound: list[tuple[Var, Expr]] = []

    def name(self, value: Expr) -> Expr:
        """Bind a value to a new variable and return it. Conditions stay unnamed: TVM cannot bind vectors of them."""
        if dtype_of(value) == "bool":
            return value
        variable = Var(f"t{len(self._bound)}", dtype_of(value))
        self._bound.append((variable, value))
        return variable

    def around(self, result: Expr) -> Expr:
        """Return a result inside the bindings of all names."""
        for variable, value in reversed(self._bound):
            result = Let(variable, value, result)
        return result


def dtype_of(expr: Expr) -> str:
    """Return the dtype of an expression."""
    return str(expr.ty.dtype)


def number(value: float, dtype: str = "float32") -> Expr:
    """Return a constant of a dtype. A plain Python float would always become float32."""
    return const(value, dtype)


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return a polynomial by Horner's rule, the highest power first."""
    dtype = dtype_of(x)
    result = number(coefficients[0], dtype)
    for coefficient in coefficients[1:]:
        result = result * x + number(coefficient, dtype)
    return result


def within(x: Expr, low: float, high: float) -> Expr:
    """Clamp a number to an interval; NaN stays NaN."""
    dtype = dtype_of(x)
    return tirx.max(number(low, dtype), tirx.min(number(high, dtype), x))


def power_of_two(exponent: Expr) -> Expr:
    """Return 2 to an exponent (int32, -126 to 127) as float32; 128 gives infinity."""
    return tirx.reinterpret("float32", (exponent + EXPONENT_BIAS) << MANTISSA_BITS)
