"""Reasons for the next batch of a job: the values that its prioritizer, its messages and its reports share."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Motive(enum.Enum):
    """Why a batch has its place in the order."""

    FIRST = "first"
    """The workload has had no trial yet, and it matters."""

    GAIN = "gain"
    EXPLORATION = "exploration"
    """It has had the fewest batches, and estimates may be wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a batch is proposed."""

    motive: Motive
    gain_sec: float
    """Expected reduction of the workload's time over the horizon; infinite: no time is known yet."""

    spread_sec: float
    """Standard deviation of that."""

    horizon: int
    """Batches after which that is expected: those for which the gain per batch is largest."""

    device_sec: float
    """Device time of one batch."""

    builder_sec: float
    weight: float
    priority: float
    trust: float
    """Realised share of the estimated gains so far; `gain_sec` has it in."""

    worth: float
    """Share of the job's latency gained per device second, times priority: the bid."""
