"""Trials of a job that searches on several kinds of boards: they go where they gain most.

Each kind has its own search, and begins with an equal share of the trials. The worths of their next batches compare,
since each is a share of the job's latency on that kind per device second:

- A kind waits while the next batch of another is worth more than twice as much, so that trials are left for that one.
- A kind without trials takes those of kinds whose next batch is worth less, and of those whose search has ended.
- No kind waits, or gives trials away, before it has had a quarter of an equal share. No kind waits for a stalled one.

Where only the time of a job is limited, no kind waits: the boards measure side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleet.domain.decisions import Motive

if TYPE_CHECKING:
    from fleet.optimizer.core.progress import JobProgress
    from fleet.optimizer.prioritizer.values import ProposedBatch

_CLEARLY = 2.0
"""Ratio of worths above which the lesser batch waits. Below, both boards measure at once: worths are estimates."""

_LEAST_SHARE = 0.25
"""Part of an equal share of the trials that each kind gets."""

_STALLED_SEC = 120.0
"""A kind without a new batch for so long may wait for its board; the others go on."""


class TrialsOfKinds:
    """The trials of one job. Thread-safe only within one event loop."""

    def __init__(self) -> None:
        self.seats: list[Seat] = []
        self._owed = 0
        """Trials that an interrupted run spent beyond the share of its kind: the other kinds get so many less."""

    def seat(self, progress: JobProgress) -> Seat:
        """Add a kind of device, with the progress of its search."""
        found = Seat(kinds=self, progress=progress)
        self.seats.append(found)
        return found

    def owe(self, trials: int) -> None:
        """Take back trials from the kinds as far as they have any, now or when they begin."""
        self._owed += trials
        for seat in self.seats:
            given = min(self._owed, max(0, seat.left))
            seat.progress.trials_total -= given
            self._owed -= given

    @property
    def least_trials(self) -> int:
        """Trials that each kind gets."""
        total = sum(seat.progress.trials_total for seat in self.seats)
        return int(_LEAST_SHARE * total / len(self.seats))


@dataclass(kw_only=True, eq=False)
class Seat:
    """One kind of boards of a job."""

    kinds: TrialsOfKinds = field(repr=False)
    progress: JobProgress
    is_over: bool = False
    """Its search has ended."""

    moved_at_sec: float = -math.inf
    """Time of its newest batch, on the clock of the job's deadline."""

    _used_then: int = 0

    @property
    def used(self) -> int:
        """Trials done or under way."""
        progress = self.progress
        return progress.trials_done + sum(len(item.under_way) + len(item.asked) for item in progress.workloads)

    @property
    def left(self) -> int:
        """Trials that nothing is planned for."""
        return self.progress.trials_total - self.used

    @property
    def worth(self) -> float:
        """Largest worth of a planned batch; infinite before the first plan, 0 after the search."""
        if self.is_over:
            return 0.0
        return max((batch.reason.worth for batch in self.progress.planned), default=math.inf)

    def top_up(self, wanted: int, now_sec: float) -> None:
        """Take trials of less valuable kinds, the least valuable first, until so many are left here."""
        self._note_move(now_sec)
        if self.progress.is_bound_by_time or self.is_over or not math.isfinite(self.worth):
            return
        for other in sorted(self.kinds.seats, key=lambda seat: seat.worth):
            missing = wanted - self.left
            if missing <= 0 or other is self or other.worth >= self.worth:
                continue
            kept = 0 if other.is_over else max(0, self.kinds.least_trials - other.used)
            given = min(missing, max(0, other.left - kept))
            other.progress.trials_total -= given
            self.progress.trials_total += given

    def must_wait(self, batch: ProposedBatch, now_sec: float) -> bool:
        """Tell whether a batch has to wait, since another kind's next one is worth clearly more."""
        self._note_move(now_sec)
        is_due = batch.reason.motive is Motive.FIRST or self.used < self.kinds.least_trials
        if is_due or self.progress.is_bound_by_time:
            return False
        return any(
            _CLEARLY * batch.reason.worth < other.worth < math.inf and now_sec < other.moved_at_sec + _STALLED_SEC
            for other in self.kinds.seats
            if other is not self and not other.is_over
        )

    def _note_move(self, now_sec: float) -> None:
        if self.used != self._used_then:
            self.moved_at_sec, self._used_then = now_sec, self.used
