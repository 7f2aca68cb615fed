"""Local buffers for the named values of large expressions, which take TVM's analyzer seconds to minutes.

The analyzer replaces each name by its value, recursively: a sine of 367 nodes grows to 167,000, and nested functions
grow to millions. It does not look behind stores. LLVM keeps the buffers in registers.
"""

from __future__ import annotations

from graphlib import TopologicalSorter

import tvm_ffi
from tvm.ir import Call, Expr, Op
from tvm.tirx import AllocBuffer, BufferLoad, BufferStore, For, ForKind, Let, SeqStmt, Stmt, Var, decl_buffer
from tvm.tirx.analysis import undefined_vars

from fleet.spaces.vector_math.names import dtype_of, number

MOST_NODES = 20_000
"""Largest number of `analyzed_nodes` without buffers. They take 50 ms; the 269,000 of a sine took 4 s."""


def with_stored_values(body: Stmt) -> Stmt:
    """Return statements with buffers for the names of large expressions. Conditional computations stay unchanged."""
    buffers = _Buffers()
    body = buffers.allocated(tvm_ffi.structural_map(body, [(For, buffers.in_loop)]))
    return buffers.allocated(tvm_ffi.structural_map(body, [(BufferStore, buffers.in_scalar), (For, buffers.in_thread)]))


def analyzed_nodes(expr: Expr) -> int:
    """Return the number of nodes of all named values and the result, with names replaced by their values."""
    lets, result = unnamed(expr)
    sizes: dict[Var, int] = {}
    for let in lets:
        sizes[let.var] = _size(let.value, sizes)
    return sum(sizes.values()) + _size(result, sizes)


def unnamed(expr: Expr) -> tuple[list[Let], Expr]:
    """Return the named values of an expression in order of computation, and the result without its names."""
    found: dict[Var, Let] = {}

    def visit(let: Let) -> Expr:
        found[let.var] = let
        return let.body

    result = tvm_ffi.structural_map(expr, [(Let, visit)])
    needs = {var: undefined_vars(let.value, []) for var, let in found.items()}
    return [found[var] for var in TopologicalSorter(needs).static_order() if var in found], result


def has_conditional_names(expr: Expr) -> bool:
    """Check for names inside conditional computations, such as guarded loads at a border."""
    names: list[Let] = []

    def visit(call: Call) -> None:
        if isinstance(call.op, Op) and call.op.name == "prim.if_then_else":
            tvm_ffi.structural_walk(call, [(Let, names.append)])

    tvm_ffi.structural_walk(expr, [(Call, visit)])
    return bool(names)


class _Buffers:
    """Buffers made for the statements visited so far, allocated once per thread, outside of all other loops."""

    def __init__(self) -> None:
        self._open: list[Var] = []

    def allocated(self, body: Stmt) -> Stmt:
        """Return a statement after the allocation of the open buffers, which it uses."""
        allocations = [AllocBuffer(buffer) for buffer in self._open]
        self._open = []
        return SeqStmt([*allocations, body]) if allocations else body

    def in_loop(self, loop: For) -> For:
        """Replace names in a vectorized loop by buffers with an element per lane."""
        if loop.kind != ForKind.VECTORIZED:
            return self.in_thread(loop)
        visits = [(BufferStore, lambda store: self._stored(store, int(loop.extent), loop.loop_var))]
        return _with_body(loop, tvm_ffi.structural_map(loop.body, visits))

    def in_thread(self, loop: For) -> For:
        """Allocate the buffers of a parallel loop inside of it."""
        return _with_body(loop, self.allocated(loop.body)) if loop.kind == ForKind.PARALLEL else loop

    def in_scalar(self, store: BufferStore) -> Stmt:
        """Replace names outside of vectorized loops by buffers with one element."""
        return self._stored(store, 1, number(0, "int32"))

    def _stored(self, store: BufferStore, lanes: int, lane: Expr) -> Stmt:
        if analyzed_nodes(store.value) <= MOST_NODES or has_conditional_names(store.value):
            return store
        lets, result = unnamed(store.value)
        loads: dict[Var, Expr] = {}
        stores = []
        for let in lets:
            buffer = decl_buffer((lanes,), dtype_of(let.var), name=let.var.name)
            stores.append(BufferStore(buffer, _replaced(let.value, loads), [lane]))
            loads[let.var] = BufferLoad(buffer, [lane])
            self._open.append(buffer)
        return SeqStmt([*stores, BufferStore(store.buffer, _replaced(result, loads), store.indices)])


def _size(expr: Expr, sizes: dict[Var, int]) -> int:
    nodes: list[Expr] = []
    tvm_ffi.structural_walk(expr, [(Expr, nodes.append)])
    return sum(sizes.get(node, 1) if isinstance(node, Var) else 1 for node in nodes)


def _replaced(expr: Expr, loads: dict[Var, Expr]) -> Expr:
    return tvm_ffi.structural_map(expr, [(Var, lambda var: loads.get(var, var))])


def _with_body(loop: For, body: Stmt) -> For:
    if body.same_as(loop.body):
        return loop
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations, loop.step)
