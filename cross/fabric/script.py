"""The int8 product of a tile in TVMScript: its semantics, and the call to the fabric.

Imports TVM, so only `cross.fabric.tiles` imports it, when it is needed. Annotations here are evaluated, not strings.
"""

from tvm.script import tirx as T  # noqa: N812 - its name in every script
from tvm.tirx import PrimFunc


def product_of_tile(m: int, n: int, k: int) -> PrimFunc:
    """Return the description C += A B for tiles anywhere in row-major matrices."""

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        left = T.match_buffer(a, (m, k), "int8", offset_factor=1, strides=[T.int32(), 1])
        right = T.match_buffer(b, (k, n), "int8", offset_factor=1, strides=[T.int32(), 1])
        sums = T.match_buffer(c, (m, n), "int32", offset_factor=1, strides=[T.int32(), 1])
        with T.sblock("root"):
            T.reads(sums[0:m, 0:n], left[0:m, 0:k], right[0:k, 0:n])
            T.writes(sums[0:m, 0:n])
            for i, j, p in T.grid(m, n, k):
                with T.sblock("update"):
                    vi, vj, vp = T.axis.remap("SSR", [i, j, p])
                    sums[vi, vj] = sums[vi, vj] + T.cast(left[vi, vp], "int32") * T.cast(right[vp, vj], "int32")

    return desc


def call_for_tile(m: int, n: int, k: int, function: str) -> PrimFunc:
    """Return the implementation as a fabric call: addresses, extents, and row strides in elements."""

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def impl(a: T.handle, b: T.handle, c: T.handle) -> None:
        sa, sb, sc = T.int32(), T.int32(), T.int32()
        left = T.match_buffer(a, (m, k), "int8", offset_factor=1, strides=[sa, 1])
        right = T.match_buffer(b, (k, n), "int8", offset_factor=1, strides=[sb, 1])
        sums = T.match_buffer(c, (m, n), "int32", offset_factor=1, strides=[sc, 1])
        with T.sblock("root"):
            T.reads(sums[0:m, 0:n], left[0:m, 0:k], right[0:k, 0:n])
            T.writes(sums[0:m, 0:n])
            T.evaluate(
                T.call_packed(
                    function,
                    T.address_of(left[0, 0]),
                    T.address_of(right[0, 0]),
                    T.address_of(sums[0, 0]),
                    m,
                    n,
                    k,
                    sa,
                    sb,
                    sc,
                )
            )

    return impl
