"""Writes exp, tanh, sigmoid and erf as arithmetic, so that vectors of them are computed at once.

LLVM has no vectors of these: it calls the C library for each number, which makes a softmax ten times as slow. The sums
here are right to 4e-7 of the result (float32 has 6e-8), infinities and NaN included; other types keep their functions.
Sources: Cephes (S. Moshier) for exp; Eigen (`generic_fast_tanh_float`, `generic_fast_erf_float`) for the other two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import Call, Expr, IRModule
    from tvm.tirx import Cast

_LOG2_E = 1.44269504088896341
_LN2_HIGH = 0.693359375
_LN2_LOW = -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_SMALLEST_EXPONENT = -86.29
"""Below, the result is zero; the function's is less than 3.4e-38. No step on the way is a number so small that float32
has fewer digits for it: processors compute those slowly (a causal softmax took twice as long).
"""
_LARGEST_EXPONENT = 89.0
"""There, and beyond, the last multiplication overflows to infinity."""
_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127

_TANH_LIMIT = 7.90531110763549805
"""Beyond, float32 has no number between the result and 1."""
_TANH_ABOVE = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_BELOW = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)

_ERF_LIMIT = 4.0
_ERF_ABOVE = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_ERF_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)


def with_arithmetic_functions(mod: IRModule) -> IRModule:
    """Return a module whose float32 functions are arithmetic. Doing so twice changes nothing more."""
    import tvm
    import tvm_ffi
    from tvm.ir import Call
    from tvm.tirx import Cast

    function = mod["main"]
    body = tvm_ffi.structural_map(function.body, [(Call, _rewritten)])
    if not body.same_as(function.body):
        body = tvm_ffi.structural_map(body, [(Call, _named_outside), (Cast, _chosen)])
    return mod if body.same_as(function.body) else tvm.IRModule({"main": function.with_body(body)}, attrs=mod.attrs)


def _rewritten(call: Call) -> Expr:
    from tvm.ir import Op

    name = call.op.name if isinstance(call.op, Op) else ""
    if name not in _FUNCTIONS or str(call.ty.dtype) != "float32":
        return call
    return _with_name(call.args[0], _FUNCTIONS[name])


def _named_outside(call: Call) -> Expr:
    """Return a rounding with the names in its argument outside of it: TVM looks at the argument twice for vectors, and
    refuses a name that it has met. What is computed under a condition stays there.
    """
    import tvm_ffi
    from tvm import tirx
    from tvm.ir import Call, Op
    from tvm.tirx import Let
    from tvm.tirx.analysis import undefined_vars

    if not isinstance(call.op, Op) or call.op.name != "tirx.nearbyint":
        return call
    found: list[Let] = []
    conditions: list[Call] = []

    def visit(inner: Call) -> None:
        if isinstance(inner.op, Op) and inner.op.name == "prim.if_then_else":
            conditions.append(inner)

    def unnamed(let: Let) -> Expr:
        found.append(let)
        return let.body

    tvm_ffi.structural_walk(call.args[0], [(Call, visit)])
    if conditions:
        return call
    result: Expr = tirx.nearbyint(tvm_ffi.structural_map(call.args[0], [(Let, unnamed)]))
    left = list(found)
    while left:  # the last name is one that no other's value needs
        last = next(one for one in left if not any(one.var in undefined_vars(it.value, []) for it in left))
        left.remove(last)
        result = Let(last.var, last.value, result)
    return result


def _chosen(cast: Cast) -> Expr:
    """Return a condition's number as a choice between 1 and 0: TVM can name no vector with such a cast in it."""
    from tvm import tirx
    from tvm.tirx import const

    dtype = str(cast.ty.dtype)
    if str(cast.value.ty.dtype) != "bool":
        return cast
    return tirx.Select(cast.value, const(1, dtype), const(0, dtype))


def _with_name(value: Expr, function: Callable[[Expr], Expr]) -> Expr:
    """Return a function of a value that is computed once, however often the function uses it."""
    from tvm.tirx import Let, Var

    name = Var("x", "float32")
    return Let(name, value, function(name))


def _exp(x: Expr) -> Expr:
    from tvm import tirx
    from tvm.tirx import const

    inside = tirx.max(const(_SMALLEST_EXPONENT, "float32"), tirx.min(const(_LARGEST_EXPONENT, "float32"), x))
    return _with_name(inside, functools.partial(_exp_within, x))


def _exp_within(x: Expr, inside: Expr) -> Expr:
    from tvm import tirx
    from tvm.tirx import const

    power = tirx.floor(inside * const(_LOG2_E, "float32") + const(0.5, "float32"))

    def scaled(n: Expr) -> Expr:
        rest = inside - n * const(_LN2_HIGH, "float32") - n * const(_LN2_LOW, "float32")

        def of_rest(r: Expr) -> Expr:
            sum_ = _polynomial(r, _EXP) * r * r + r + const(1.0, "float32")
            # Two factors: 2^128 is no float32, and half of it times two is.
            half = tirx.Cast("int32", n) - 1
            factor = tirx.reinterpret("float32", (half + _EXPONENT_BIAS) << _MANTISSA_BITS)
            return sum_ * factor * const(2.0, "float32")

        return _with_name(rest, of_rest)

    result = _with_name(power, scaled)
    return tirx.Select(x < const(_SMALLEST_EXPONENT, "float32"), const(0.0, "float32"), result)


def _sigmoid(x: Expr) -> Expr:
    from tvm.tirx import const

    one = const(1.0, "float32")
    return one / (one + _with_name(const(0.0, "float32") - x, _exp))


def _rational(x: Expr, limit: float, above: Sequence[float], below: Sequence[float]) -> Expr:
    """Return the odd function x * above(x^2) / below(x^2), constant beyond a limit."""
    from tvm import tirx
    from tvm.tirx import const

    def inside(z: Expr) -> Expr:
        return _with_name(z * z, lambda square: z * _polynomial(square, above) / _polynomial(square, below))

    return _with_name(tirx.max(const(-limit, "float32"), tirx.min(const(limit, "float32"), x)), inside)


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return a polynomial by Horner's rule, the highest power first."""
    from tvm.tirx import const

    result = const(coefficients[0], "float32")
    for coefficient in coefficients[1:]:
        result = result * x + const(coefficient, "float32")
    return result


_FUNCTIONS: dict[str, Callable[[Expr], Expr]] = {
    "tirx.exp": _exp,
    "tirx.sigmoid": _sigmoid,
    "tirx.tanh": functools.partial(_rational, limit=_TANH_LIMIT, above=_TANH_ABOVE, below=_TANH_BELOW),
    "tirx.erf": functools.partial(_rational, limit=_ERF_LIMIT, above=_ERF_ABOVE, below=_ERF_BELOW),
}
