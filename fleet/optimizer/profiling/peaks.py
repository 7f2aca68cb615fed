"""Measures a device's roofline with programs that only compute or only read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from cross.targets.target import Target
from fleet.building.pool import Pool, run_within
from fleet.client.device import Device
from fleet.domain.measuring import Evaluator, Measurement, Trial
from fleet.domain.roofline import MemoryRate, Roofline
from fleet.optimizer.tasks.peaks import BuiltPeak, PeakTask, build_peak
from fleet.workloads.peak_programs import VECTOR_LANES

_CPU_READ_BYTES = (256 * 1024, 4 * 1024**2, 64 * 1024**2)
_GPU_READ_BYTES = (4 * 1024**2, 256 * 1024**2)
"""Typical sizes of caches of the second and third level, and one beyond nearly all."""

_EVALUATOR = Evaluator(repeat=30, min_repeat_ms=2, give_up_above_sec=0.2)
"""Many and short: the best of them counts, and one that nothing disturbed is among them even on a busy machine."""

_TIMEOUT_SEC = 60.0


async def build_peaks(pool: Pool, target: Target, out_dir: Path) -> list[BuiltPeak]:
    """Build the programs.

    Raises:
        BuildError: one did not compile or link.
    """
    tasks = [PeakTask(kind="arithmetic", size=n, target=target, out_dir=str(out_dir)) for n in VECTOR_LANES]
    sizes = _CPU_READ_BYTES if target.is_processor else _GPU_READ_BYTES
    tasks += [PeakTask(kind="reading", size=n, target=target, out_dir=str(out_dir)) for n in sizes]
    return list(await asyncio.gather(*(run_within(pool, _TIMEOUT_SEC, build_peak, task) for task in tasks)))


async def measure_roofline(device: Device, built: Sequence[BuiltPeak]) -> Roofline:
    """Run the programs on a device."""
    await device.ensure(item.artifact for item in built)
    return roofline_of(built, [measurement async for measurement in device.measure(peak_trials(built))])


def peak_trials(built: Sequence[BuiltPeak]) -> list[Trial]:
    """Return a trial for each program, in order."""
    return [
        Trial(
            candidate_id=str(index),
            artifact_digest=item.artifact.digest,
            args=item.program.args,
            evaluator=_EVALUATOR,
            timeout_sec=_TIMEOUT_SEC,
        )
        for index, item in enumerate(built)
    ]


def roofline_of(built: Sequence[BuiltPeak], measured: Sequence[Measurement]) -> Roofline:
    """Return the roofline derived from measurements. The best of each program counts; failed ones are ignored."""
    best = [
        (item.program, min(measurement.run_secs))
        for item, measurement in zip(built, measured, strict=True)
        if measurement.run_secs
    ]
    rates = {program.read_bytes: program.read_bytes / sec for program, sec in best if program.read_bytes}
    # Smaller buffers are read at least as fast: if one seems slower, starting the threads took most of the time.
    memory = [
        MemoryRate(size_bytes=size, bytes_per_sec=max(rate for other, rate in rates.items() if other >= size))
        for size in sorted(rates)
    ]
    return Roofline(
        flop_per_sec=max((program.flop / sec for program, sec in best if program.flop), default=0.0),
        memory=tuple(memory),
        source="measured on the device: float32 multiply-adds in registers, and reading through arrays",
    )
