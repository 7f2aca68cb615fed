"""Replaces the initial values of maxima and minima: the maximum of only -inf is -inf, as in other frameworks.

TVM begins a maximum with the smallest finite number of its type. So the largest of a row that is masked with -inf was
-3.4e38. ONNX's Attention compares it with -inf to find such rows and return zeros; it found none, and returned NaN. The
compiled code is corrected, not the scheduled program: its hash names its records.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.ir import Expr
    from tvm.tirx import BufferStore, PrimFunc

_WITH_INFINITIES = ("float16", "float32", "float64", "bfloat16")


def with_infinite_identities(function: PrimFunc) -> PrimFunc:
    """Return a scheduled function whose maxima and minima of real numbers begin with an infinity.

    A store of the finite bound is the beginning of one where the same buffer is made a maximum of itself and others.
    """
    import tvm_ffi
    from tvm.tirx import BufferStore, const

    reductions: list[BufferStore] = []

    def look(store: BufferStore) -> None:
        if _is_reduction(store):
            reductions.append(store)

    def change(store: BufferStore) -> BufferStore:
        infinity = _infinity_for(store.value)
        of_it = (each for each in reductions if each.buffer.same_as(store.buffer))
        if infinity is None or all(_infinity_of(each) != infinity for each in of_it):
            return store
        return BufferStore(store.buffer, const(infinity, str(store.value.ty)), store.indices)

    tvm_ffi.structural_walk(function.body, [(BufferStore, look)])
    if not reductions:
        return function
    return function.with_body(tvm_ffi.structural_map(function.body, [(BufferStore, change)]))


def _is_reduction(store: BufferStore) -> bool:
    from tvm.ir import TensorLoad
    from tvm.tirx import Max, Min

    value = store.value
    if not isinstance(value, Max | Min) or str(value.ty) not in _WITH_INFINITIES:
        return False
    return any(isinstance(each, TensorLoad) and each.source.same_as(store.buffer) for each in (value.a, value.b))


def _infinity_of(reduction: BufferStore) -> float:
    """Return the neutral element of a maximum or minimum."""
    from tvm.tirx import Max

    return -math.inf if isinstance(reduction.value, Max) else math.inf


def _infinity_for(value: Expr) -> float | None:
    """Return the infinity that replaces a type's lowest or highest finite number; None for other values."""
    from tvm.tirx import FloatImm, max_value

    if not isinstance(value, FloatImm) or str(value.ty) not in _WITH_INFINITIES:
        return None
    return math.copysign(math.inf, value.value) if abs(value.value) == max_value(str(value.ty)).value else None
