"""Status of tuning runs, for other users, while they run."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from fleet.base.text import sanitize
from fleet.domain.devices import holder_text
from fleet.domain.leases import MOST_PRIORITY
from fleet.errors import InvalidRequest

DEFAULT_STRATEGY = "evolutionary"
"""Search strategy of a job that names none."""

_DOUBLING = 5.0
"""Steps of priority that double the worth of a job's gains: those of an urgent one count four times."""

_MOST_STEPS = 100
"""Steps that count: a factor of a million decides among any two jobs."""


class JobState(enum.StrEnum):
    """The state of a tuning run. The names are those of fleet.v1.JobState without their prefix."""

    QUEUED = "QUEUED"
    """It waits for an optimizer."""

    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    INTERRUPTED = "INTERRUPTED"
    """It stands still: stopped in the middle, or its process is gone. It may be resumed."""

    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """Its user stopped it. It may be resumed."""


class PriorityClass(enum.IntEnum):
    """Urgency of a job. The number is that of its requests for devices: larger goes first."""

    BACKGROUND = -10
    NORMAL = 0
    URGENT = 10


def parse_priority(text: str) -> int:
    """Read "urgent", "normal", "background", or a whole number.

    Raises:
        InvalidRequest: it is something else, or out of bounds.
    """
    found = {item.name.lower(): item.value for item in PriorityClass}.get(text.strip().lower())
    if found is not None:
        return found
    try:
        number = int(text)
    except ValueError:
        names = ", ".join(item.name.lower() for item in sorted(PriorityClass, reverse=True))
        raise InvalidRequest(f"there is no priority {text!r}; known are {names}, and whole numbers") from None
    if abs(number) > MOST_PRIORITY:
        raise InvalidRequest(f"priority {number} is out of bounds; choose one from {-MOST_PRIORITY} to {MOST_PRIORITY}")
    return number


def gain_factor(priority: int) -> float:
    """Return how many times a job's gains count among the jobs of its account: positive, and finite."""
    return math.exp2(max(-_MOST_STEPS, min(priority, _MOST_STEPS)) / _DOUBLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """Time until the last trial, with its 10 % and 90 % quantiles [s]."""

    from_sec: float
    expected_sec: float
    by_sec: float

    def __str__(self) -> str:
        return f"about {self.expected_sec:.0f} s of search left ({self.from_sec:.0f} to {self.by_sec:.0f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Status of a tuning run while it runs. The library keeps the lasting record."""

    name: str
    """ "jobs/<id>", the same as in the library."""

    title: str = ""
    holder: str = ""
    state: JobState = JobState.RUNNING
    started_at_sec: float = 0.0
    trials_done: int = 0
    trials_total: int = 0
    """0: as many as fit into its time."""

    share_done: float = 0.0
    """Progress of its search, from 0 to 1, by its trials or by its time; 0 also from an older optimizer."""

    trials_failed: int = 0
    trials_repeated: int = 0
    """Measurements made again because something disturbed the first."""

    best_us: float = 0.0
    """Weighted sum of the best latencies so far [us]."""

    untuned_us: float = 0.0
    """Weighted sum for the unscheduled programs [us]."""

    workload_count: int = 0
    activity: str = ""
    """Current activity, for people."""

    decision: str = ""
    """Current or next measurements and their reason, for people; empty: nothing was decided yet."""

    holder_note: str = ""
    """Name of the submitter as the client reports it; empty if it equals the certificate's name."""

    left: Remaining | None = None
    """Expected time until its search ends; None: not known, or not searching."""

    rest_share: float | None = None
    """Share of the latency that the next tenth of its budget should gain; None: as for `left`."""

    optimizer: str = ""
    """Host and process id of the optimizer that runs it; empty: `fleet tune` does."""

    builder_count: int = 0
    """Builders of that optimizer, shared by its jobs; 0: not known."""

    @property
    def held_by(self) -> str:
        """The holder, with its note."""
        return holder_text(self.holder, self.holder_note)

    def __repr__(self) -> str:
        trials = f"{trials_text(self.trials_done, self.trials_total)} trials"
        return f"<JobStatus {self.name} {self.state}: {sanitize(self.title)}, {trials}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStatus:
    """A process that runs submitted jobs, busy or idle."""

    name: str
    """Host and process id, as in `JobStatus.optimizer`."""

    holder: str = ""
    builder_count: int = 0
    """Builders, shared by its jobs; 0: not known."""


def trials_text(done: int, total: int) -> str:
    """Return how many trials a job has made: "37/64", or "37" if it makes as many as fit into its time."""
    return f"{done}/{total}" if total else str(done)


def share_done(done: int, total: int, *, elapsed_sec: float = 0.0, search_sec: float | None = None) -> float:
    """Return how far a job's search is, from 0 to 1: by its trials or by its time, whichever is further.

    Args:
        total: 0: nobody asked for a number of trials.
        search_sec: the value of `elapsed_sec` at which the search ends; None: no time was named.
    """
    by_trials = done / total if total else 0.0
    by_time = elapsed_sec / search_sec if search_sec else 0.0
    return min(1.0, max(by_trials, by_time))
