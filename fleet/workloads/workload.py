"""A workload: one tensor program to optimize, as text that any process can read back."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.domain.measuring import TensorSpec
from fleet.domain.operators import describe_workload
from fleet.models.recurrent_program import input_scales
from fleet.spaces.blocks import child_blocks
from fleet.workloads.lookups import largest_index

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc

_FEWEST_TERMS = 4096
"""Of a model: what it has besides sums, norms and activations, rounds as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One tensor program, with all that is needed to tune it."""

    name: str
    """Its function in the model: "fused_conv2d7_add4_relu4". Unique within a model."""

    weight: int
    """How many times one run of the model calls it."""

    mod_json: str
    """The IRModule with its one function "main", as `tvm.ir.save_json` writes it."""

    shash: str
    """Structural hash in decimal, as MetaSchedule's databases write it."""

    flop: float
    """Operations of one call; 0 when it only moves data."""

    args: tuple[TensorSpec, ...]
    """Arguments in order, outputs marked."""

    largest_index: int | None = None
    """Of the integers among its inputs, as far as they are indices; None: none is."""

    input_scales: tuple[tuple[int, float], ...] = ()
    """Scale factors for random inputs, by argument index. With larger numbers, rounding errors dominate the outputs."""

    @property
    def operator(self) -> str:
        """A name for people: "conv2d 3x3 64->128 56x56"."""
        return describe_workload(self.name, self.args, self.mod_json)

    @property
    def names(self) -> tuple[str, str]:
        """What a pattern may match: TVM's name and the one for people."""
        return self.name, self.operator

    @property
    def terms(self) -> int | None:
        """How many terms are added for one element of the output, from the operations; None if that is not known."""
        outputs = sum(math.prod(spec.shape) for spec in self.args if spec.is_output)
        return max(1, round(self.flop / 2 / outputs)) if self.flop and outputs else None


def terms_of_model(workloads: Iterable[Workload]) -> int:
    """Return how many terms stand behind an output of a model: one sum after the other, each with its own rounding."""
    return max(_FEWEST_TERMS, sum((workload.terms or 0) * workload.weight for workload in workloads))


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
    """Tell whether a program is a workload: one for tensors whose sizes are told when it runs has neither schedules nor
    records.
    """
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
