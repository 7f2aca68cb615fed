"""Disturbances of a time, described for people."""

from __future__ import annotations

import os

import pytest

from device_agents.measuring.contention import find_contention, waited_sec_by_thread
from device_agents.measuring.disturbances import find_disturbances
from fleet.domain.devices import Telemetry
from fleet.domain.measuring import Disturbance, DisturbanceKind


def test_unknown_facts_are_not_printed() -> None:
    """Missing readings do not count as a disturbance."""
    assert find_disturbances(Telemetry(), Telemetry()) == []


def test_throttling_is_shown_with_its_reasons() -> None:
    """Throttling counts whether it began before or during the run."""
    before, after = Telemetry(throttle_reasons=("thermal",)), Telemetry(throttle_reasons=("thermal", "power-brake"))

    assert find_disturbances(before, after) == [
        Disturbance(DisturbanceKind.THROTTLED, "throttled: thermal, power-brake")
    ]


@pytest.mark.parametrize("reason", ["power-cap", "current-cap", "sync-boost"])
def test_a_gpu_at_its_power_limit_is_not_disturbed(reason: str) -> None:
    """Under load it always is at its limit; otherwise no measurement on one would ever count."""
    busy = Telemetry(throttle_reasons=(reason,), freq_hz=1.9e9)
    hot = Telemetry(throttle_reasons=(reason, "thermal"), freq_hz=1.9e9)
    slower = Telemetry(throttle_reasons=(reason,), freq_hz=1.2e9)

    assert find_disturbances(busy, busy) == []
    assert find_disturbances(busy, hot) == [Disturbance(DisturbanceKind.THROTTLED, "throttled: thermal")]
    assert find_disturbances(busy, slower) == []
    assert find_disturbances(slower, Telemetry(freq_hz=0.9e9)) == [
        Disturbance(DisturbanceKind.CLOCK_FELL, "clock fell from 1200 to 900 MHz")
    ]


@pytest.mark.parametrize(("count", "text"), [(1, "1 foreign process"), (2, "2 foreign processes")])
def test_processes_of_others_are_reported(count: int, text: str) -> None:
    """Processes that came during the run count, too."""
    found = find_disturbances(Telemetry(foreign_processes=0), Telemetry(foreign_processes=count))

    assert found == [Disturbance(DisturbanceKind.FOREIGN_PROCESSES, text)]


def test_another_governor_is_reported() -> None:
    """A changed governor is a disturbance."""
    found = find_disturbances(Telemetry(governor="performance"), Telemetry(governor="powersave"))

    assert found == [Disturbance(DisturbanceKind.GOVERNOR_CHANGED, "governor changed from performance to powersave")]


@pytest.mark.parametrize("governor", ["performance", "userspace", ""])
def test_a_fixed_clock_that_falls_is_reported(governor: str) -> None:
    """A fixed clock falls only if the processor is forced to slow down."""
    before, after = Telemetry(governor=governor, freq_hz=3e9), Telemetry(governor=governor, freq_hz=2.6e9)

    assert find_disturbances(before, after) == [
        Disturbance(DisturbanceKind.CLOCK_FELL, "clock fell from 3000 to 2600 MHz")
    ]


def test_a_clock_that_moves_by_design_is_not() -> None:
    """Under ondemand an idle core is slow, and a rising clock is a device that wakes up. A tenth is noise."""
    for governor in ("ondemand", "schedutil", "powersave"):
        assert (
            find_disturbances(Telemetry(governor=governor, freq_hz=3e9), Telemetry(governor=governor, freq_hz=1e9))
            == []
        )
    assert find_disturbances(Telemetry(freq_hz=1e9), Telemetry(freq_hz=3e9)) == []
    assert find_disturbances(Telemetry(freq_hz=3e9), Telemetry(freq_hz=2.8e9)) == []
    assert find_disturbances(Telemetry(freq_hz=3e9), Telemetry()) == []


def test_waiting_for_a_processor_is_reported_as_a_share() -> None:
    """The most hindered thread counts: a parallel loop is as slow as its slowest part."""
    found = find_contention({1: 5.0, 2: 0.0}, {1: 5.0, 2: 0.031, 3: 0.002}, 0.1)

    assert found == Disturbance(DisturbanceKind.CONTENTION, "waited 31% of its time for a busy processor")


def test_waking_up_is_no_waiting() -> None:
    """Microseconds are a large share of a short run, and some milliseconds a small one of a long run."""
    assert find_contention({1: 0.0}, {1: 0.001}, 0.002) is None
    assert find_contention({1: 0.0}, {1: 0.01}, 1.0) is None
    assert find_contention({}, {}, 1.0) is None


def test_every_thread_of_a_process_is_read() -> None:
    """The kernel reports times of this process."""
    assert os.getpid() in waited_sec_by_thread(os.getpid())


def test_an_ended_process_waits_for_no_turn() -> None:
    """A worker may die under a candidate."""
    assert waited_sec_by_thread(2**22 + 1) == {}
