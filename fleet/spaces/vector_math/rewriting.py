"""Rewrite of math functions as arithmetic, so that they are vectorized.

LLVM does not vectorize them: it calls the C library for each number, which makes a softmax ten times slower. Results
are within 4 ulp of float32 (`python -m tests.function_errors` compares all numbers). float16 is computed in float32.
float64 and bfloat16 keep the C library's functions; TVM itself converts bfloat16 to float32 later.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Expr, IRModule, Op
from tvm.tirx import Cast, Let, const

from fleet.spaces.vector_math import circular, exponentials, hyperbolic, inverse, logarithms, powers, rationals
from fleet.spaces.vector_math.names import Names, dtype_of, number, within
from fleet.spaces.vector_math.storing import has_conditional_names, unnamed, with_stored_values

_COMPUTED = ("float32", "float16")
_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "acos": inverse.acos,
    "acosh": hyperbolic.acosh,
    "asin": inverse.asin,
    "asinh": hyperbolic.asinh,
    "atan": inverse.atan,
    "atanh": hyperbolic.atanh,
    "cos": circular.cos,
    "cosh": exponentials.cosh,
    "erf": rationals.erf,
    "exp": exponentials.exp,
    "exp10": exponentials.exp10,
    "exp2": exponentials.exp2,
    "log": logarithms.log,
    "log10": logarithms.log10,
    "log1p": logarithms.log1p,
    "log2": logarithms.log2,
    "pow": powers.power,
    "sigmoid": exponentials.sigmoid,
    "sin": circular.sin,
    "sinh": exponentials.sinh,
    "tan": circular.tan,
    "tanh": rationals.tanh,
}
"""Arithmetic functions by the name of TVM's operator."""

_NAMESPACES = ("tirx", "prim")
"""TVM's namespaces of operators on numbers. The second has a logarithm and conditions."""

_MISH_LIMITS = -100.0, 40.0
"""Arguments below and above which tanh(log1p(exp(x))) is 0 or 1 in float32. Squares of the exponentials are finite."""


def with_arithmetic_functions(mod: IRModule) -> IRModule:
    """Return a module with float16 and float32 functions as arithmetic. Idempotent."""
    function = mod["main"]
    body = tvm_ffi.structural_map(function.body, [(Call, _without_nesting)])
    body = tvm_ffi.structural_map(body, [(Call, _rewritten)])
    if not body.same_as(function.body):
        body = tvm_ffi.structural_map(body, [(Call, _named_outside), (Cast, _chosen)])
        body = with_stored_values(body)
    return mod if body.same_as(function.body) else tvm.IRModule({"main": function.with_body(body)}, attrs=mod.attrs)


def _without_nesting(call: Call) -> Expr:
    """Return tanh(log1p(exp(x))), a factor of Mish, as n / (n + 2) with n = e (e + 2) and e = exp(x)."""
    x: Expr = call
    for name in ("tanh", "log1p", "exp"):
        if _name(x) != name or dtype_of(x) not in _COMPUTED:
            return call
        x = x.args[0]
    names = Names()
    power = names.name(tirx.exp(within(_float32(x), *_MISH_LIMITS)))
    product = names.name(power * (power + number(2.0)))
    return _as(dtype_of(call), names.around(product / (product + number(2.0))))


def _rewritten(call: Call) -> Expr:
    """Return a call as arithmetic, or unchanged if it is not supported."""
    name = _name(call)
    dtype = dtype_of(call) if name in _FUNCTIONS else ""
    if dtype not in _COMPUTED:
        return call
    names = Names()
    base, *exponent = map(_float32, call.args)
    return _as(dtype, names.around(_FUNCTIONS[name](names, names.name(base), *exponent)))


def _name(expr: Expr) -> str:
    """Return the name of the function that an expression calls; empty for other expressions."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Op):
        return ""
    namespace, _, name = expr.op.name.partition(".")
    return name if namespace in _NAMESPACES else ""


def _float32(expr: Expr) -> Expr:
    return _as("float32", expr)


def _as(dtype: str, expr: Expr) -> Expr:
    return expr if dtype_of(expr) == dtype else tirx.Cast(dtype, expr)


def _named_outside(call: Call) -> Expr:
    """Move the names inside the argument of a rounding to the outside.

    TVM visits the argument twice for vectors and refuses duplicate names. Conditional computations stay unchanged.
    """
    if _name(call) != "nearbyint" or has_conditional_names(call):
        return call
    lets, argument = unnamed(call.args[0])
    result: Expr = tirx.nearbyint(argument)
    for let in reversed(lets):
        result = Let(let.var, let.value, result)
    return result


def _chosen(cast: Cast) -> Expr:
    """Replace the cast of a condition by a choice between 1 and 0: TVM cannot name vectors that contain such a cast."""
    dtype = str(cast.ty.dtype)
    if str(cast.value.ty.dtype) != "bool":
        return cast
    return tirx.Select(cast.value, const(1, dtype), const(0, dtype))
