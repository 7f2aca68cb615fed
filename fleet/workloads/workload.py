"""Describes tensor programs as workloads, and reads their programs back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from fleet.domain.measuring import TensorSpec
from fleet.domain.workload import Workload
from fleet.models.recurrent_program import input_scales
from fleet.spaces.blocks import child_blocks
from fleet.workloads.lookups import largest_index

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc


def workload_of(mod: IRModule | PrimFunc, *, name: str, weight: int = 1) -> Workload:
    """Describe a PrimFunc, or an IRModule with one function."""
    import tvm
    from tvm.s_tir.analysis import estimate_tir_flops

    from cross.targets.intrinsics import keep_package_light

    keep_package_light()
    from tvm.s_tir import meta_schedule as ms

    mod = ms.tune_context._normalize_mod(mod)  # noqa: SLF001 - what TVM's own databases apply before they hash
    return Workload(
        name=name,
        weight=weight,
        mod_json=tvm.ir.save_json(mod),
        shash=str(ms.database.Workload(mod).as_json()[0]),
        flop=float(estimate_tir_flops(mod)),
        args=argument_specs(mod),
        largest_index=largest_index(mod),
        input_scales=input_scales(mod),
    )


def has_known_sizes(function: PrimFunc) -> bool:
    """Tell whether all sizes of a program are known: programs of dynamic shapes have neither schedules nor records."""
    from tvm.tirx import IntImm

    return all(
        isinstance(size, IntImm) for param in function.params for size in (getattr(param.ty, "shape", None) or ())
    )


@functools.lru_cache(maxsize=64)
def module_of(mod_json: str) -> IRModule:
    """Return the IRModule of a workload; parsed once per process."""
    import tvm

    return tvm.ir.load_json(mod_json)


def argument_specs(mod: IRModule) -> tuple[TensorSpec, ...]:
    """Return the arguments of a module's "main" in order. An output is a buffer that one of its blocks writes."""
    from tvm.s_tir import Schedule

    buffers = [param for param in mod["main"].params if hasattr(param.ty, "shape")]
    schedule = Schedule(mod)
    stored = [region.source for block in child_blocks(schedule) for region in schedule.get(block).writes]
    written = [any(buffer.same_as(other) for other in stored) for buffer in buffers]
    if not any(written):
        written[-1:] = [True]  # an opaque call writes it; by convention it is the last one
    return tuple(
        TensorSpec(tuple(int(size) for size in buffer.shape), str(buffer.dtype), is_output)
        for buffer, is_output in zip(buffers, written, strict=True)
    )
