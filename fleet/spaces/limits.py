"""The roofline of an unmeasured processor, from its TVM target and named assumptions."""

from __future__ import annotations

from collections.abc import Sequence

from cross.targets.target import Target
from fleet.base.quantities import size_text
from fleet.domain.roofline import MemoryRate, Roofline
from fleet.spaces.facts import processor_facts

_ASSUMED_CLOCK_GHZ = 2.0
"""Boards run their cores at 1.5 to 2.5 GHz."""

_ASSUMED_BANDWIDTH_GBS = 10.0
"""Assumed memory bandwidth. Boards have 4 to 60 GB/s."""

ALL_SIZES = 1 << 62
_FLOP_PER_LANE = 2
"""A multiplication and an addition."""


def expected_roofline(
    target: Target,
    *,
    peak_gflops: float | None = None,
    clock_ghz: float | None = None,
    bandwidth_gbs: float | None = None,
    measured: Sequence[MemoryRate] = (),
) -> Roofline:
    """Return the limits of a target, with their basis in `source`.

    Args:
        peak_gflops: of float32 arithmetic on all cores; None: lanes x units x clock, where the target is a processor.
        clock_ghz: of all cores at once; None: assumed.
        bandwidth_gbs: of the memory; None: as measured, else an assumption, for GPUs none: they differ too much.
        measured: rates of one core that copies, on this machine, by growing size.
    """
    facts = processor_facts(target)
    said = []
    if peak_gflops is None and facts is not None:
        clock = clock_ghz or _ASSUMED_CLOCK_GHZ
        peak_gflops = facts.cores * facts.lanes * facts.fmas_per_cycle * _FLOP_PER_LANE * clock
        said.append(
            f"{peak_gflops:.4g} GFLOP/s from {facts.cores} cores x {facts.lanes} lanes x {facts.fmas_per_cycle} units "
            f"at {clock:.3g} GHz{'' if clock_ghz else ' (assumed)'}"
        )
    elif peak_gflops is not None:
        said.append(f"{peak_gflops:.4g} GFLOP/s as given")
    memory = tuple(measured)
    if memory and not bandwidth_gbs:
        rates = [f"{rate.bytes_per_sec / 1e9:.3g} GB/s in {size_text(rate.size_bytes)}" for rate in memory]
        said.append(f"{', '.join(rates)}, measured, one core copying")
    elif bandwidth_gbs or facts is not None:
        said.append(
            f"{bandwidth_gbs:.4g} GB/s as given" if bandwidth_gbs else f"{_ASSUMED_BANDWIDTH_GBS:.4g} GB/s assumed"
        )
        memory = (MemoryRate(size_bytes=ALL_SIZES, bytes_per_sec=(bandwidth_gbs or _ASSUMED_BANDWIDTH_GBS) * 1e9),)
    return Roofline(flop_per_sec=(peak_gflops or 0.0) * 1e9, memory=memory, source="; ".join(said) or "not known")
