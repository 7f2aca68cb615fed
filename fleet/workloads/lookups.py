"""Bounds of numbers that a program uses as indices: reads beyond a table's end return garbage."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvm.ir import Expr, IRModule, TensorLoad, Var
    from tvm.tirx import BufferStore


def largest_index(mod: IRModule) -> int | None:
    """Return the largest number that is a valid index for each use as one in a module's "main"; None if unused as
    an index.
    """
    import tvm_ffi
    from tvm.ir import TensorLoad
    from tvm.tirx import BufferStore, IntImm

    limits: dict[Var, int] = {}
    stores: list[BufferStore] = []

    def limit(index: Expr, largest: int) -> None:
        for load in _loads(index):
            if "int" in str(load.source.dtype):
                limits[load.source] = min(limits.get(load.source, largest), largest)

    def look(table: Var, indices: Sequence[Expr]) -> None:
        for size, index in zip(table.shape, indices, strict=True):
            if isinstance(size, IntImm):
                limit(index, int(size) - 1)

    def visit_store(store: BufferStore) -> None:
        stores.append(store)
        look(store.buffer, store.indices)

    body = mod["main"].body
    tvm_ffi.structural_walk(
        body, [(TensorLoad, lambda load: look(load.source, load.indices)), (BufferStore, visit_store)]
    )
    for store in reversed(stores):  # an index may be computed from others, such as one that counts from the end
        if store.buffer in limits:
            limit(store.value, limits[store.buffer])
    return min((limits[param] for param in mod["main"].params if param in limits), default=None)


def _loads(expr: Expr) -> list[TensorLoad]:
    """Return the reads of tensors in an expression."""
    import tvm_ffi
    from tvm.ir import TensorLoad

    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(expr, [(TensorLoad, found.append)])
    return found
