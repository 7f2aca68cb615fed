"""Intervals of an agent's own actions. Users keep the defaults; tests have less time."""

from __future__ import annotations

from dataclasses import dataclass

from device_agents.measuring.idle_schedule import SERIES_SEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Intervals in seconds, one share, and one count."""

    health_sec: float = 1.0
    """Interval between two checks of the devices' health."""

    heartbeat_sec: float = 5.0
    """Interval between two reports to the tracker while nothing changes."""

    search_pause_sec: float = 30.0
    """Shortest pause between two searches for missing devices."""

    search_share: float = 0.05
    """Largest share of time for these searches: one may start a process, even a compiler, on measured cores."""

    finder_retry_sec: float = 5.0
    """Pause after a failed look for new devices."""

    restarts: int = 5
    """Attempts in a row to start the process that workers are forked from, before the devices count as faulted."""

    reference_series_sec: tuple[float, ...] = SERIES_SEC
    """Runs of the reference kernel on an idle device."""

    settle_sec: float = 60.0
    """From a power cycle to the next one, if the device is still faulted."""

    hook_fault_sec: float = 600.0
    """Time until a device with a failed hook serves leases again."""


USUAL = Timing()
