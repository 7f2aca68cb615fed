"""News of a job as data: its activity, notices, and the reasons for closing workloads.

`fleet.optimizer.narrator` puts them into words. No decision reads them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.domain.decisions import Reason
    from fleet.domain.measuring import ErrorKind
    from fleet.domain.proving import Proof
    from fleet.optimizer.prioritizer.values import Finish, Rest


class Topic(enum.Enum):
    """Subject of news."""

    TEXT = enum.auto()
    """An activity outside of the core, described by `detail`."""

    SEARCHING = enum.auto()
    BUILDING = enum.auto()
    TIMING_BASELINES = enum.auto()
    MEASURING = enum.auto()
    REPEATING = enum.auto()
    PROVING = enum.auto()
    RUN_OFF = enum.auto()

    SEARCH_ENDED = enum.auto()
    LITTLE_LEFT = enum.auto()
    WORKLOAD_CLOSED = enum.auto()
    DEVICE_SUSPECTED = enum.auto()
    DEVICE_DISTURBED = enum.auto()
    STAYS_DISTURBED = enum.auto()
    REPEATS_SPENT = enum.auto()
    NOT_LEARNT = enum.auto()
    WRONG_OUTPUT = enum.auto()
    NOT_PROVEN = enum.auto()

    ENDED = enum.auto()
    ENOUGH = enum.auto()
    EXHAUSTED = enum.auto()
    FINISHED = enum.auto()
    SEARCH_FAILED = enum.auto()
    BASELINE_FAILED = enum.auto()
    BASELINE_NOT_TIMED = enum.auto()
    NOT_CHECKED = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """One message for the user; its topic decides which fields apply."""

    topic: Topic
    operator: str = ""
    """Name of a workload for people."""

    device: str = ""
    count: int = 0
    limit: float = 0.0
    reason: Reason | None = None
    finish: Finish | None = None
    rest: Rest | None = None
    proof: Proof | None = None
    closing: News | None = None
    """Reason why the workload is closed."""

    error: ErrorKind | None = None
    detail: str = ""
    """Text from outside of the core: an error message, a disturbance, the user's deadline."""
