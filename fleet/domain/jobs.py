"""Tuning runs as others see them while they run."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class JobState(enum.StrEnum):
    """The state of a tuning run. The names are those of fleet.v1.JobState without their prefix."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    INTERRUPTED = "INTERRUPTED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One tuning run, as others see it while it runs. The library keeps the lasting record."""

    name: str
    """ "jobs/<id>", the same as in the library."""

    title: str = ""
    holder: str = ""
    state: JobState = JobState.RUNNING
    started_at_sec: float = 0.0
    trials_done: int = 0
    trials_total: int = 0
    trials_failed: int = 0
    trials_repeated: int = 0
    """Measurements made again because something disturbed the first."""

    best_us: float = 0.0
    """Weighted sum of the best latencies so far [us]."""

    untuned_us: float = 0.0
    """The same sum for the unscheduled programs [us]."""

    workload_count: int = 0
    activity: str = ""
    """What it is doing now, for people."""
