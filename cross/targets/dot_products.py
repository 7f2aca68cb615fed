"""Tensor intrinsics of the instructions in `cross.targets.integer_units`: their semantics, and the calls to LLVM.

Imports TVM, so only `cross.targets.intrinsics` imports it, when it is needed. Annotations here are evaluated, not
strings. TVM's own intrinsics of the kind name LLVM functions by types that they have no longer.
"""

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812 - its name in every script
from tvm.tirx import PrimFunc

from cross.targets.integer_units import IntegerUnit

_LLVM_NAMES = {
    ("vpdpbusd", 16): "llvm.x86.avx512.vpdpbusd.512",
    ("vpdpbusd", 8): "llvm.x86.avx512.vpdpbusd.256",
    ("vpdpbusd", 4): "llvm.x86.avx512.vpdpbusd.128",
    ("vpmaddwd", 16): "llvm.x86.avx512.pmaddw.d.512",
    ("vpmaddwd", 8): "llvm.x86.avx2.pmadd.wd",
    ("vpmaddwd", 4): "llvm.x86.sse2.pmadd.wd",
    ("sdot", 4): "llvm.aarch64.neon.sdot.v4i32.v16i8",
}
_ADDING = frozenset({"vpdpbusd", "sdot"})
"""Instructions that add to a sum themselves."""


def register(unit: IntegerUnit) -> None:
    """Register the intrinsics of an instruction, in all its widths. Repeated calls are free."""
    for lanes in unit.widths:
        name = unit.intrinsic(lanes)
        if TensorIntrin.get(name, allow_missing=True) is None:
            TensorIntrin.register(name, _meaning(unit, lanes), _call(unit, lanes))


def _meaning(unit: IntegerUnit, lanes: int) -> PrimFunc:
    """Return the description sums += weights * data for `lanes` sums; all lanes use the same group of data."""
    group = unit.group

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        data = T.match_buffer(a, (group,), unit.data_operand, offset_factor=1)
        weights = T.match_buffer(b, (lanes, group), unit.weights, offset_factor=1)
        sums = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(sums[0:lanes], data[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            for i, k in T.grid(lanes, group):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    sums[vi] = sums[vi] + T.cast(data[vk], "int32") * T.cast(weights[vi, vk], "int32")

    return desc


def _call(unit: IntegerUnit, lanes: int) -> PrimFunc:
    """Return the implementation: a call of LLVM's accumulating function, or one that multiplies and an addition."""
    group, operand, vector = unit.group, unit.data_operand, f"int32x{lanes}"
    few, many, steps = f"{operand}x{group}", f"{operand}x{group * lanes}", f"{unit.weights}x{group * lanes}"
    function = _LLVM_NAMES[unit.name, lanes]

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def adding(a: T.handle, b: T.handle, c: T.handle) -> None:
        data = T.match_buffer(a, (group,), unit.data_operand, offset_factor=1)
        weights = T.match_buffer(b, (lanes, group), unit.weights, offset_factor=1)
        sums = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(sums[0:lanes], data[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(function),
                sums.vload([0], dtype=vector),
                T.reinterpret(T.broadcast(T.reinterpret(data.vload([0], dtype=few), dtype="int32"), lanes), dtype=many),
                weights.vload([0, 0], dtype=steps),
                dtype=vector,
            )

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]
    def multiplying(a: T.handle, b: T.handle, c: T.handle) -> None:
        data = T.match_buffer(a, (group,), unit.data_operand, offset_factor=1)
        weights = T.match_buffer(b, (lanes, group), unit.weights, offset_factor=1)
        sums = T.match_buffer(c, (lanes,), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(sums[0:lanes], data[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] += T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(function),
                T.reinterpret(T.broadcast(T.reinterpret(data.vload([0], dtype=few), dtype="int32"), lanes), dtype=many),
                weights.vload([0, 0], dtype=steps),
                dtype=vector,
            )

    return adding if unit.name in _ADDING else multiplying
