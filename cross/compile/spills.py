"""Makes LLVM spill vectors to aligned stack addresses.

A vector of 32 or 64 bytes that is spilled to the stack belongs on a multiple of its size: elsewhere each store and load
of it may touch two cache lines. The x86 stack is aligned to 16 bytes. LLVM aligns it further for spills only where it
had to before it gave out the registers: where a variable of the function asks for it. TVM's functions have none, so
their callers decide the address of their spills: a kernel with a few took 13 or 17 us, as the environment of its
process was long, and always 17 in the threads of a pool. One such variable, written once, decides it for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.tirx import AttrStmt, For, PrimFunc, Stmt

_NUMBER = "float32"
_VECTOR = f"{_NUMBER}x16"
"""Vector type of 64 bytes: as wide as any vector of x86, and a cache line."""

_VOLATILE = "tirx.volatile"
"""TVM's name for a buffer with stores that LLVM keeps."""

_BODY = "compute_scope"
"""TVM's name for the part of a function that becomes a separate function in LLVM, beside the check of the arguments."""


def with_aligned_spills(function: PrimFunc) -> PrimFunc:
    """Return a function for x86 with aligned spills, in its body and in its parallel loops.

    Both are functions of their own by the time that LLVM sees them. Each run of either writes one number for it.
    """
    import tvm_ffi
    from tvm.tirx import AttrStmt, For

    visits = [(For, _aligned_in_threads), (AttrStmt, _aligned_in_body)]
    return function.with_body(tvm_ffi.structural_map(function.body, visits))


def _aligned_in_threads(loop: For) -> For:
    from tvm.tirx import For, ForKind

    if loop.kind != ForKind.PARALLEL:
        return loop
    body = _aligned(loop.body)
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations, loop.step)


def _aligned_in_body(scope: AttrStmt) -> AttrStmt:
    from tvm.tirx import AttrStmt

    if scope.attr_key != _BODY:
        return scope
    return AttrStmt(scope.node, scope.attr_key, scope.value, _aligned(scope.body))


def _aligned(body: Stmt) -> Stmt:
    """Return the body with an unused vector variable, which LLVM keeps because its first element is written."""
    from tvm.tirx import AllocBuffer, BufferStore, DeclBuffer, SeqStmt, const, decl_buffer

    variable, first = decl_buffer((1,), _VECTOR, name="aligned"), decl_buffer((1,), _NUMBER, name="first")
    return SeqStmt(
        [
            AllocBuffer(variable, {_VOLATILE: 1}),
            DeclBuffer(first, data=variable.data),
            BufferStore(first, const(0.0, _NUMBER), [0]),
            body,
        ]
    )
