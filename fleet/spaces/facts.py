"""Facts of a processor or GPU that its design spaces depend on, read from its TVM target.

A target names a core or an architecture level; caches and pipes are not in it. So the figures are those that the cores
of a level have in common, chosen low: a tile that fits a small cache fits a large one, too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cross.targets.integer_units import IntegerUnit, integer_unit
from cross.targets.target import Target, make_target
from fleet.base.config import did_you_mean
from fleet.errors import InvalidRequest

_GPU = "gpu"
"""Key of every target with kernels in blocks of threads: cuda, rocm, opencl, vulkan, metal."""

_KIB = 1024
_AVX512_CORES = ("x86-64-v4", "skylake-avx512", "cascadelake", "icelake", "sapphirerapids", "znver4", "znver5")
_AVX2_CORES = ("x86-64-v3", "haswell", "broadwell", "skylake", "alderlake", "znver1", "znver2", "znver3", "core-avx2")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorFacts:
    """One processor, as its static schedules see it."""

    lanes: int
    """float32 numbers in a vector register."""

    registers: int
    """Vector registers."""

    latency: int
    """Cycles until a fused multiply-add can use the result of another."""

    fmas_per_cycle: int
    loads_per_cycle: int
    """Vector loads."""

    has_scalar_operands: bool
    """A multiply-add takes one operand from memory and repeats it (AVX-512), or one lane of a register (NEON): a
    number of the data needs no separate register.
    """

    l1_bytes: int
    l2_bytes: int
    """Per core."""

    cores: int = 1

    integer_unit: IntegerUnit | None = None
    """Instruction for products of 8-bit integers, if that is faster than float32 arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One GPU, as schedules for it see it. A limit is None if TVM does not know it."""

    target: Target
    """For TVM's own rules."""

    kind: str
    """"cuda", "rocm", "opencl", "vulkan", "metal"."""

    threads_per_block: int | None
    threads_per_warp: int | None
    shared_bytes: int | None
    """Memory that the threads of a block share."""


def facts_of(target: Target) -> ProcessorFacts | GpuFacts | None:
    """Return the facts of a target; None for kinds that have no design spaces."""
    return processor_facts(target) or gpu_facts(target)


@functools.lru_cache(maxsize=32)
def gpu_facts(target: Target) -> GpuFacts | None:
    """Return the facts of a GPU, or None for any other target."""
    made = make_target(target)
    if _GPU not in made.keys:
        return None
    return GpuFacts(
        target=target,
        kind=target.kind,
        threads_per_block=_number(made.attrs, "max_num_threads"),
        threads_per_warp=_number(made.attrs, "thread_warp_size"),
        shared_bytes=_number(made.attrs, "max_shared_memory_per_block"),
    )


def _number(attributes: Mapping[str, object], name: str) -> int | None:
    value = attributes.get(name)
    return None if value is None else int(str(value))


@functools.lru_cache(maxsize=32)
def processor_facts(target: Target) -> ProcessorFacts | None:
    """Return the facts of a target's processor, or None where kernels do not run on one (GPUs)."""
    if target.kind not in ("llvm", "c"):
        return None
    found = replace(_FAMILIES[_family(target)], integer_unit=integer_unit(target))
    return found if target.cores is None else replace(found, cores=target.cores)


def assume(facts: ProcessorFacts, options: Mapping[str, int | bool]) -> ProcessorFacts:
    """Return the facts with some of them replaced by other values.

    Raises:
        InvalidRequest: an option is no fact, or its value is of another type or not positive.
    """
    known = {field.name: type(getattr(facts, field.name)) for field in fields(facts) if field.name != "integer_unit"}
    for name, value in options.items():
        if name not in known:
            raise InvalidRequest(f"{name!r} is no fact of a processor{did_you_mean(name, known)}")
        if type(value) is not known[name] or value < int(known[name] is int):
            wanted = "True or False" if known[name] is bool else "a positive whole number"
            raise InvalidRequest(f"the fact {name!r} is {wanted}, not {value!r}")
    checked: dict[str, Any] = {**options}
    return replace(facts, **checked)


def _family(target: Target) -> str:
    core, arch = str(target.options.get("mcpu") or ""), target.arch
    attributes = target.options.get("mattr") or []
    switched_on = {str(name) for name in attributes} if isinstance(attributes, (list, tuple)) else {str(attributes)}
    if arch == "aarch64":
        return "neon64"
    if arch == "armv7l":
        return "neon32"
    if arch != "x86_64":
        return "any"
    if core.startswith(_AVX512_CORES) or "+avx512f" in switched_on:
        return "avx512"
    if core.startswith(_AVX2_CORES) or {"+avx2", "+fma"} <= switched_on:
        return "avx2"
    return "sse"


_USUAL = ProcessorFacts(
    lanes=4,
    registers=16,
    latency=4,
    fmas_per_cycle=2,
    loads_per_cycle=2,
    has_scalar_operands=False,
    l1_bytes=32 * _KIB,
    l2_bytes=256 * _KIB,
)
_FAMILIES: dict[str, ProcessorFacts] = {
    "avx512": replace(_USUAL, lanes=16, registers=32, has_scalar_operands=True, l2_bytes=1024 * _KIB),
    "avx2": replace(_USUAL, lanes=8, l2_bytes=512 * _KIB),
    "sse": replace(_USUAL, latency=8, fmas_per_cycle=1),  # a multiplication and an addition
    "neon64": replace(_USUAL, registers=32, has_scalar_operands=True),
    # 12 of the 16 registers: LLVM multiplies and adds separately here, so products in flight need registers, too
    "neon32": replace(_USUAL, registers=12, latency=8, fmas_per_cycle=1, loads_per_cycle=1, has_scalar_operands=True),
    "any": replace(_USUAL, fmas_per_cycle=1, loads_per_cycle=1, l1_bytes=16 * _KIB, l2_bytes=128 * _KIB),
}
