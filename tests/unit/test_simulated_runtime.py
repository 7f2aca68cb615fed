"""Kernels that are not there, and the times they take."""

from __future__ import annotations

from pathlib import Path

from device_agents.runtimes.simulated import SimulatedRuntime
from fleet.domain.measuring import Measurement, Trial


def measure(path: Path, content: bytes, **settings: float) -> Measurement:
    path.write_bytes(content)
    runtime = SimulatedRuntime(time_scale=0.0, **settings)
    return runtime.measure(Trial(candidate_id="c", artifact_digest="d"), str(path))


def test_simulated_times_follow_from_the_content(tmp_path: Path) -> None:
    """The same content takes the same time, another content another, within the documented range."""
    secs = [measure(tmp_path / "a", content).run_secs[0] for content in (b"one", b"one", b"two")]

    assert secs[0] == secs[1] != secs[2]
    assert all(0.4e-4 < sec < 5e-4 for sec in secs)


def test_simulated_seeds_are_other_devices(tmp_path: Path) -> None:
    """A program that is fast on one need not be fast on another."""
    assert measure(tmp_path / "a", b"one", seed=1).run_secs != measure(tmp_path / "a", b"one", seed=2).run_secs
