"""A device's performance limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Measurement
from fleet.domain.roofline import MemoryRate, Roofline, share_of
from fleet.optimizer.profiling.peaks import roofline_of
from fleet.optimizer.tasks.peaks import BuiltPeak
from fleet.workloads.peak_programs import PeakProgram

DEVICE = Roofline(
    flop_per_sec=100e9,
    memory=(
        MemoryRate(size_bytes=1_000_000, bytes_per_sec=50e9),
        MemoryRate(size_bytes=10_000_000, bytes_per_sec=10e9),
    ),
)


def built(**what: float) -> BuiltPeak:
    artifact = Artifact(path=Path("a.so"), digest="sha256:0")
    return BuiltPeak(artifact=artifact, program=PeakProgram(args=(), **what))  # type: ignore[arg-type]


def test_the_tighter_limit_counts() -> None:
    """Arithmetic bounds one operator, memory another."""
    assert DEVICE.least_sec(flop=1e9, size_bytes=1_000) == pytest.approx(10e-3)
    assert not DEVICE.is_memory_bound(flop=1e9, size_bytes=1_000)
    assert DEVICE.least_sec(flop=0, size_bytes=1_000_000) == pytest.approx(20e-6)
    assert DEVICE.is_memory_bound(flop=0, size_bytes=1_000_000)


def test_memory_rate_is_that_of_the_smallest_cache_that_fits() -> None:
    """Data too large for every measured size is read at the rate of the largest one."""
    assert DEVICE.memory_sec(1_000_001) == pytest.approx(1_000_001 / 10e9)
    assert DEVICE.memory_sec(1e9) == pytest.approx(0.1)


def test_unknown_device_limits_give_no_share() -> None:
    """No share is better than a wrong one."""
    assert Roofline(flop_per_sec=0).least_sec(1e9, 1e9) is None
    assert share_of(None, 1.0) is None
    assert share_of(0.5, 1.0) == 0.5


def test_a_roofline_is_the_best_that_was_measured() -> None:
    """A wider program may be slower, small data is read at least as fast as large data, and failures are ignored."""
    programs = [built(flop=1e9), built(flop=1e9), built(flop=9e9), built(read_bytes=1_000), built(read_bytes=9_000)]
    times = [(0.1, 0.2), (0.05,), (), (1e-6,), (3e-6, 1e-6)]

    found = roofline_of(programs, [Measurement(candidate_id="", run_secs=secs) for secs in times])

    assert found.flop_per_sec == pytest.approx(1e9 / 0.05)
    assert [(rate.size_bytes, rate.bytes_per_sec) for rate in found.memory] == [
        (1_000, pytest.approx(9e9)),
        (9_000, pytest.approx(9e9)),
    ]
