"""TVM's way from a scheduled program to code, with four differences: small buffers of processors stay on the stack,
spilled vectors are aligned (`cross.compile.spills`), the last vectors of tiles are cut where they reach too far
(`cross.compile.cutting`), and a maximum begins with -inf (`cross.compile.identities`). A fifth is for candidates, as
hundreds are compiled: the software conversion of half-precision numbers is left out of programs without any.

TVM takes each buffer of 1 KiB or more from the heap, where it is cleared, and where LLVM cannot keep it in registers
for good: a tile of 6 x 64 float32 sums costs two calls, and 48 loads and stores, that it does not need.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from cross.compile.cutting import with_cut_vectors
from cross.compile.identities import with_infinite_identities
from cross.compile.spills import with_aligned_spills
from cross.targets.target import Target, is_x86

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.tirx import AllocBuffer, PrimFunc
    from tvm.transform import Pass, PassContext

_NAME = "fleet"
_NAME_WITHOUT_HALF = "fleet_without_half"
_STOCK = "default"
_STOCK_FACTORY = "s_tir"
"""Meaning of "default"."""

_MARK = "fleet_lowering"
"""Attribute of a PrimFunc that TVM's default lowering shall lower like ours."""

_CONVERSIONS = ("__truncsfhf2", "__extendhfsf2")
"""TVM gives each library these two, and LLVM takes longer for them than for a small kernel: 6 of 38 ms. They are weak:
existing functions with their names replace them."""

_LEFT_TO_LLVM = ("tirx.RemoveNoOp",)
"""Passes that change no code, since LLVM does the same. This one takes a tenth of the time of scheduled programs."""

_MOST_STACK_BYTES = 8 * 1024
"""Largest size of one buffer on the stack: four times a processor's registers. Threads have at least 128 KiB."""

_KEEP = "disable_lower_builtin"
"""TVM's annotation of a buffer that the pass which moves buffers to the heap leaves unchanged."""

_Passes: TypeAlias = "tuple[Pass, Callable[[], Pass], Callable[[], Pass]]"
"""The lowering, and the last passes for the host and for devices."""


def tir_pipeline(target: Target, *, has_half: bool = True) -> str:
    """Return the name of the lowering for a target, to be given to `tvm.compile`.

    Args:
        has_half: whether a number of the program may be of half precision (float16).
    """
    if not target.is_processor:
        return _STOCK
    from tvm.tirx import register_tir_pipeline

    if has_half:
        register_tir_pipeline(_NAME, _passes)
        return _NAME
    register_tir_pipeline(_NAME_WITHOUT_HALF, functools.partial(_passes, has_half=False))
    return _NAME_WITHOUT_HALF


def pass_context(target: Target, *, checks_arguments: bool) -> PassContext:
    """Return the settings of TVM's passes for compiling programs.

    Args:
        checks_arguments: see `cross.compile.library.build`.
    """
    import tvm

    left_out = _LEFT_TO_LLVM if target.is_processor else ()
    return tvm.transform.PassContext(config={"tirx.disable_assert": not checks_arguments}, disabled_pass=left_out)


def lower_by_default(mod: IRModule, target: Target) -> IRModule:
    """Mark a module's functions so that `tvm.compile` lowers them our way without a named pipeline.

    From then on TVM's default lowering in this process looks for the mark; other functions are lowered as ever.
    """
    if not target.is_processor:
        return mod
    from tvm import ir
    from tvm.tirx import PrimFunc

    _serve_marked()
    marked = {
        variable: function.with_attr(_MARK, 1) if isinstance(function, PrimFunc) else function
        for variable, function in mod.functions.items()
    }
    return ir.IRModule(marked, attrs=mod.attrs)


@functools.cache  # once: later, the pipeline there is ours
def _serve_marked() -> None:
    from tvm.tirx import compilation_pipeline, register_tir_pipeline

    stock: Callable[[], _Passes] = compilation_pipeline.PIPELINE_MAP[_STOCK_FACTORY]
    register_tir_pipeline(_STOCK_FACTORY, lambda: _around(stock(), _is_marked))


def _is_marked(function: PrimFunc) -> bool:
    return bool(function.attrs) and _MARK in function.attrs


def _passes(*, has_half: bool = True) -> _Passes:
    import tvm
    from tvm import tirx

    last = [] if has_half else [tvm.transform.module_pass(lambda mod, _context: _without_half(mod), opt_level=0)]
    return _around(tirx.get_tir_pipeline(_STOCK), lambda _: True, last)


def _around(stock: _Passes, is_ours: Callable[[PrimFunc], bool], last: Sequence[Pass] = ()) -> _Passes:
    """Return TVM's pipeline with our passes before its lowering, and around its last passes for the host and for
    devices.

    Args:
        is_ours: which functions ours are for.
    """
    import tvm
    from tvm import tirx

    def where_ours(change: Callable[[PrimFunc], PrimFunc]) -> Pass:
        return tirx.transform.prim_func_pass(
            lambda function, _mod, _context: change(function) if is_ours(function) else function, opt_level=0
        )

    lower, finish_host, finish_device = stock
    return (
        tvm.transform.Sequential([where_ours(with_infinite_identities), where_ours(with_cut_vectors), lower]),
        lambda: tvm.transform.Sequential([where_ours(_on_stack), where_ours(_aligned_on_x86), finish_host(), *last]),
        finish_device,
    )


def _without_half(mod: IRModule) -> IRModule:
    """Replace TVM's half-precision conversions by empty functions, which nobody calls."""
    from tvm.ir import GlobalVar
    from tvm.tirx import Evaluate, PrimFunc

    target = next(iter(mod.functions.values())).attrs["target"]
    for name in _CONVERSIONS:
        empty = PrimFunc([], Evaluate(0)).with_attr({"global_symbol": name, "target": target})
        mod.update_func(GlobalVar(name), empty)
    return mod


def _aligned_on_x86(function: PrimFunc) -> PrimFunc:
    """Align the stack on x86: elsewhere its alignment equals the vector width."""
    triple = str(function.attrs["target"].attrs.get("mtriple", ""))
    return with_aligned_spills(function) if is_x86(triple) else function


def _on_stack(function: PrimFunc) -> PrimFunc:
    import tvm_ffi
    from tvm.tirx import AllocBuffer

    return function.with_body(tvm_ffi.structural_map(function.body, [(AllocBuffer, _kept)]))


def _kept(allocation: AllocBuffer) -> AllocBuffer:
    """Return an allocation, marked to stay on the stack if it is small."""
    from tvm import DataType
    from tvm.tirx import AllocBuffer, IntImm

    buffer = allocation.buffer
    sizes = [int(size) for size in buffer.shape if isinstance(size, IntImm)]
    dtype = DataType(str(buffer.dtype))
    size_bytes = math.prod(sizes) * dtype.bits * dtype.lanes // 8
    is_small = len(sizes) == len(buffer.shape) and 0 < size_bytes <= _MOST_STACK_BYTES  # LLVM has no empty array
    if not is_small or buffer.scope() not in ("global", "local"):
        return allocation
    return AllocBuffer(buffer, {**allocation.annotations, _KEEP: IntImm("int32", 1)})
