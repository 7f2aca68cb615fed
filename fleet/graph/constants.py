"""Converts constants of a Relax function to numpy arrays, and back. All changes of weights are made here, in numpy.

TVM's own FoldConstant compiles every operator with LLVM first, which takes 90 s on DenseNet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tvm.relax import Expr

    from fleet.graph.rebuilding import Rebuild

Array = NDArray[Any]
"""Array of any dtype."""


def array_of(rebuild: Rebuild, expr: Expr) -> Array | None:
    """Return the value of a constant without a copy; None for other expressions and dtypes that numpy lacks."""
    from tvm import ir

    constant = rebuild.bound_to(expr)
    if not isinstance(constant, ir.GenericConst):
        return None
    try:
        return np.from_dlpack(constant.value)
    except (AttributeError, BufferError, RuntimeError):
        return None


def is_constant(expr: Expr) -> bool:
    """Tell whether an expression is a constant tensor."""
    from tvm import ir

    return isinstance(expr, ir.GenericConst)


def constant(value: Array, dtype: str | None = None) -> Expr:
    """Return an array as a constant in the given dtype, in row-major order."""
    from tvm import relax

    array = np.asarray(value, dtype=dtype or value.dtype, order="C")
    # without a dtype it would convert float64 to float32, and int64 to int32
    return relax.const(array, str(array.dtype))


def operand(value: Array, other: Expr) -> Expr:
    """Return an array as a constant operand that does not change the rank of the other tensor.

    A single number gets one axis if the other tensor has any. TVM writes numbers without axes into the program, so each
    number would make a workload of its own; an array stays an argument.
    """
    return constant(value if rank_of(other) == 0 else np.atleast_1d(value))


def shape_of(expr: Expr) -> tuple[int, ...] | None:
    """Return a tensor's shape; None if a dimension or the rank is unknown, or for other values."""
    from tvm import relax, tirx

    if not isinstance(expr.ty, relax.TensorType) or not isinstance(expr.ty.shape, relax.ShapeExpr):
        return None
    dims = expr.ty.shape.values
    return tuple(int(dim) for dim in dims) if all(isinstance(dim, tirx.IntImm) for dim in dims) else None


def rank_of(expr: Expr) -> int:
    """Return a tensor's number of axes; 0 for other values, and -1 if unknown."""
    from tvm import relax

    return int(expr.ty.ndim) if isinstance(expr.ty, relax.TensorType) else 0


def dtype_of(expr: Expr) -> str:
    """Return a tensor's dtype."""
    return str(expr.ty.dtype)
