"""Selects disturbed measurements to repeat: a few times, within a budget.

The agent reports the disturbances of every time. A disturbed time is stored like any other; then the candidate
is measured again after a pause, and the newest time of a candidate counts, here as in the library. Two limits
end this on a machine that stays busy: repeats get only a share of the job's device time, and after some batches in
vain, times are kept as they are, marked, until a batch is calm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.domain.measuring import DisturbanceKind, Measurement, Trial

if TYPE_CHECKING:
    from fleet.domain.measuring import RepeatCount

BUDGET_SHARE = 0.25
"""Share of a job's device time for repeats. Without a limit, eight trials on a busy machine took up to a hundred."""

_PAUSES_SEC = (0.2, 1.0)
"""Pause before each repeat: a disturbance is often over in a moment."""

_VAIN_BATCHES = 2
"""After this many batches in a row that stayed disturbed despite all repeats, stop trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Trials to measure again."""

    trials: tuple[Trial, ...]
    pause_sec: float
    reason: str
    """Most frequent disturbance, in words."""


class Repeats:
    """Bookkeeping of one job's repeats, on all its devices."""

    def __init__(self, count: RepeatCount) -> None:
        self._count = count
        self._first_sec = 0.0
        self._first_count = 0
        self._vain_batches: Counter[str] = Counter()
        """Numbers of consecutive disturbed batches, by device."""

    def note(self, measurement: Measurement, *, is_again: bool, trials_left: int) -> None:
        """Record the cost of a measurement.

        Args:
            trials_left: trials of the job that have not been measured yet.
        """
        spent_sec = measurement.clocks.load_sec + measurement.clocks.run_sec
        if is_again:
            self._count.count += 1
            self._count.device_sec += spent_sec
            return
        self._first_count += 1
        self._first_sec += spent_sec
        expected_sec = self._first_sec * (1 + trials_left / self._first_count)
        self._count.budget_sec = max(self._count.budget_sec, BUDGET_SHARE * expected_sec)

    def choose(
        self, device_name: str, seen: Sequence[Measurement], trials: Sequence[Trial], *, made: int
    ) -> Again | None:
        """Return the part of a batch to measure again, or None if nothing has to or may be repeated.

        Args:
            seen: the latest measurement of each trial, in the order in which they were made.
            made: repeats that the batch has had.
        """
        doubtful = find_doubtful(seen)
        if not doubtful:
            self._vain_batches[device_name] = 0
            return None
        if made == len(_PAUSES_SEC):
            self._vain_batches[device_name] += 1
            return None
        if self._vain_batches[device_name] >= _VAIN_BATCHES:
            return None
        fastest = sorted((m for m in seen if m.candidate_id in doubtful), key=lambda m: m.median_sec)
        wanted = {measurement.candidate_id for measurement in self._affordable(fastest)}
        if not wanted:
            return None
        return Again(
            trials=tuple(trial for trial in trials if trial.candidate_id in wanted),
            pause_sec=_PAUSES_SEC[made],
            reason=main_disturbance(seen),
        )

    def has_just_given_up(self, device_name: str, *, made: int) -> bool:
        """Tell whether, since the batch that just ended, the device's disturbances are accepted."""
        return made == len(_PAUSES_SEC) and self._vain_batches[device_name] == _VAIN_BATCHES

    def _affordable(self, measurements: Sequence[Measurement]) -> list[Measurement]:
        """Return as many as the budget allows, fastest first: a job needs the fastest."""
        left_sec = self._count.budget_sec - self._count.device_sec
        found: list[Measurement] = []
        for measurement in measurements:
            cost_sec = measurement.clocks.load_sec + measurement.clocks.run_sec
            if cost_sec > left_sec and (found or left_sec <= 0):
                self._count.is_spent = True
                break
            left_sec -= cost_sec
            found.append(measurement)
        return found


def find_doubtful(measurements: Iterable[Measurement]) -> set[str]:
    """Return the candidates with doubtful times, given measurements in order.

    A drift of the reference kernel casts doubt on all that was measured since it last ran: nobody knows when it began.
    """
    doubtful: set[str] = set()
    since: list[str] = []
    latest = None
    for measurement in measurements:
        before, after = (_reference_sec(measurement, when) for when in ("before", "after"))
        has_drifted = any(found.kind is DisturbanceKind.REFERENCE_DRIFT for found in measurement.disturbances)
        if before != latest:  # it ran right before this one
            doubtful.update(since if has_drifted else ())
            since.clear()
        if measurement.error is None:
            since.append(measurement.candidate_id)
            doubtful.update([measurement.candidate_id] if measurement.disturbances else ())
        if after != before:  # it ran right after this one
            doubtful.update(since if has_drifted else ())
            since.clear()
        latest = after
    return doubtful


def main_disturbance(measurements: Iterable[Measurement]) -> str:
    """Return the most common disturbance as text."""
    counts = Counter(found.text for measurement in measurements for found in measurement.disturbances)
    return max(counts, key=lambda text: counts[text], default="no reason given")


def _reference_sec(measurement: Measurement, when: str) -> object:
    readings = measurement.provenance.get(when)
    return readings.get("reference_sec") if isinstance(readings, Mapping) else None
