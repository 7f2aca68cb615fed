"""Splits the last vector of a tile whose columns are no multiple of the vector width: 24 become 16 and 8.

A schedule says it as loops that reach too far, with a condition. TVM makes of a vector with a condition as many scalars
as it has lanes; it is a shorter vector where the condition holds for the first lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tvm.ir import Expr
    from tvm.sym import Analyzer
    from tvm.tirx import For, PrimFunc, Stmt, Var


def with_cut_vectors(function: PrimFunc) -> PrimFunc:
    """Return a scheduled function without conditions in the last vectors of unrolled loops."""
    import tvm_ffi
    from tvm.tirx import For

    return function.with_body(tvm_ffi.structural_map(function.body, [(For, _cut)]))


def _cut(outer: For) -> Stmt:
    """Return a loop over vectors split into a loop over the full vectors, and the partial last one."""
    from tvm.s_tir import SBlockRealize
    from tvm.tirx import ForKind, SeqStmt

    inner = outer.body
    if outer.kind != ForKind.UNROLLED or getattr(inner, "kind", None) != ForKind.VECTORIZED:
        return outer
    if not isinstance(inner.body, SBlockRealize):
        return outer
    vectors, lanes = int(outer.extent), int(inner.extent)
    last = _lanes_of_last(inner.body.predicate, outer, inner)
    if last is None:
        return outer
    whole = _loop(outer, vectors - 1, _loop(inner, lanes, inner.body))
    cut = _loop(outer, 1, _loop(inner, last, inner.body), first=vectors - 1)
    return SeqStmt([whole, cut]) if vectors > 1 else cut


def _lanes_of_last(predicate: Expr, outer: For, inner: For) -> int | None:
    """Return how many leading lanes of the last vector are computed; None if all, or if the condition is complex."""
    from tvm.sym import Analyzer
    from tvm.tirx.analysis import undefined_vars

    conditions = [
        term
        for term in _terms(predicate)
        if any(variable.same_as(inner.loop_var) for variable in undefined_vars(term, []))
    ]
    if len(conditions) != 1:
        return None
    analyzer, lanes = Analyzer(), range(int(inner.extent))
    *whole, cut = [
        [_decided(analyzer, _at(conditions[0], {outer.loop_var: vector, inner.loop_var: lane})) for lane in lanes]
        for vector in range(int(outer.extent))
    ]
    last = cut.count(True)
    is_cut = all(all(held) for held in whole) and cut == [lane < last for lane in lanes]
    return last if is_cut and 0 < last < len(lanes) else None


def _terms(condition: Expr) -> list[Expr]:
    """Return the conjuncts of a condition."""
    from tvm.ir.prim import expr as prim

    return [*_terms(condition.a), *_terms(condition.b)] if isinstance(condition, prim.And) else [condition]


def _decided(analyzer: Analyzer, condition: Expr) -> bool | None:
    from tvm.tirx import IntImm

    found = analyzer.simplify(condition)
    return bool(int(found)) if isinstance(found, IntImm) else None


def _loop(loop: For, extent: int, body: Stmt, first: int = 0) -> For:
    """Return a loop over a range of another loop's iterations."""
    from tvm.ir.prim import expr as prim
    from tvm.tirx import For, IntImm, Var

    dtype = str(loop.loop_var.ty.dtype)
    variable = Var(loop.loop_var.name, dtype)
    step = prim.Add(variable, IntImm(dtype, first)) if first else variable
    return For(variable, IntImm(dtype, 0), IntImm(dtype, extent), loop.kind, _at(body, {loop.loop_var: step}))


def _at(node: Expr | Stmt, values: Mapping[Var, Expr | int]) -> Expr | Stmt:
    """Return an expression or a statement with variables replaced."""
    import tvm_ffi
    from tvm.tirx import IntImm, Var

    def replaced(variable: Var) -> Expr:
        for old, new in values.items():
            if variable.same_as(old):
                return IntImm(str(variable.ty.dtype), new) if isinstance(new, int) else new
        return variable

    return tvm_ffi.structural_map(node, [(Var, replaced)])
