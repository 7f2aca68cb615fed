"""Inputs and outputs of the prioritizer: plain values, times in seconds.

The currency is a job's relative gain, `weight x seconds saved / the job's current latency`, per second of a device.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fleet.domain.decisions import Reason

LogSecs = NDArray[np.float64]
"""Natural logarithms of times [s], shape [n_members, n_candidates]: predictions of each member of a model's ensemble
for the candidates to measure next, in that order."""

Predictions = Mapping[str, LogSecs]
"""Predictions by the workload's name. A workload without any is judged by its records alone."""

UNKNOWN_GAIN = 0.3
"""Share of its time that an unknown workload is taken to gain by its first batch."""

_IMPROVED = 0.02
"""Share of a workload's time that trials must gain to count as an improvement; less is noise."""

_LEAST_TRIALS = 8
"""A workload with fewer trials has not been searched."""

_LEAST_SEARCHED = 5
"""Minimum number of searched workloads for a statement about their kind."""

_UNKNOWN_WEIGHT = 1.0
"""Weight of the usual gain of an unknown workload, in searched workloads."""

SMALLEST_BATCH = 4
"""A smaller batch is proposed only where no more trials are left or allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTerms:
    """Limits and goals of a job."""

    name: str = ""
    priority: float = 1.0
    """Factor on its gain, > 0: the user's, times the urgency of its deadline."""

    target_sec: float = 0.0
    """Weighted latency at which the job is done [s]; 0: none."""

    deadline_sec: float = math.inf
    """Deadline, on the clock of `prioritize`."""

    until_gain: float = 0.0
    """Share of the job's latency: the job is done once the next `look_sec` should gain less; 0: never."""

    look_sec: float = math.inf
    """Time over which that gain is expected [priced s]: device seconds, plus builders' seconds at their price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """Expected and actual gain of a batch, as shares of the workload's time before it."""

    expected: float
    gained: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadState:
    """One workload of one job on one kind of device."""

    name: str
    """Unique among all that are compared; equal worths are ordered by it."""

    job: JobTerms = field(default_factory=JobTerms)
    device_model: str = ""
    weight: float = 1.0
    """Number of its calls in the model, > 0."""

    current_sec: float
    """Current time in the model; infinite: unknown."""

    least_sec: float = 0.0
    """The device's roofline for it; 0: not known."""

    run_secs: tuple[float, ...] = ()
    """Times of its candidates in the order in which they were measured; infinite for a failure."""

    batches: int = 0
    """Batches so far, whether measured or not."""

    trials: int = 0
    """Trials so far, those of earlier jobs, too. A static schedule is none, though its time is among `run_secs`."""

    first_gain: float = UNKNOWN_GAIN
    """Share of its time that its first batch should gain, by the records of its kind of operator."""

    is_tried: bool = True
    """A trial of it has a result."""

    trials_left: int = 1_000_000
    least_batch: int = SMALLEST_BATCH
    """Fewest trials in one batch, unless there are fewer left. A small batch passes the turn on sooner: one that nobody
    waits for has all that it may have, since each costs a search and the way there and back."""

    max_batch: int = 8
    """Most trials in one batch, >= 1."""

    trial_device_sec: float
    """Expected device time of one more trial, > 0."""

    round_device_sec: float = 0.0
    """Device time that a batch takes however small it is: uploads, and the way there and back."""

    trial_builder_sec: float = 0.0
    """Processor time to find and build one candidate."""

    round_builder_sec: float = 0.0
    """Processor time that a batch takes however small it is."""

    payers: int = 1
    """Jobs that share its trials: each pays an equal part of them, and gains."""

    outcomes: tuple[BatchOutcome, ...] = ()
    is_busy: bool = False
    """Its next batch is being made: it gets none before that is done."""

    is_closed: bool = False
    """It gets no more trials, for a reason outside of the prioritizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device that can be had."""

    model: str = ""
    builder_price: float = 0.1
    """Device seconds that a builder's second is worth: 1 where both share their cores, little where builders idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedBatch:
    """Trials that should be measured next."""

    workload: str
    job: str
    device_model: str
    count: int
    expected_share: float
    """Share of the workload's time that this batch should gain, before trust, as in `Outcome`. 0: not known."""

    reason: Reason


class Done(enum.Enum):
    """Why a workload is finished."""

    CLOSED = "closed"
    NO_TRIALS = "no trials left"
    AT_ROOFLINE = "at the roofline"
    TARGET = "target reached"
    DEADLINE = "deadline passed"
    NOTHING_TO_GAIN = "nothing to gain"
    LITTLE_LEFT = "little left"
    """The rest of the job should gain less than it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """Expected gain of the rest of a job."""

    gain_sec: float
    """Expected reduction of the job's latency [weighted s]."""

    within_sec: float
    """Time in which that is expected [priced s]."""

    latency_sec: float
    """Current latency of the job [weighted s]."""

    @property
    def share(self) -> float:
        """Gain as a share of the latency; 0 if no latency is known."""
        return self.gain_sec / self.latency_sec if self.latency_sec else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A workload that gets no more trials."""

    done: Done
    expected_share: float = math.nan
    """For NOTHING_TO_GAIN: gain of the next `trials` trials, as a share of its time."""

    trials: int = 0
    target_sec: float = math.nan
    """For TARGET: the requested time [weighted s]."""

    rest: Rest | None = None
    """For LITTLE_LEFT: expected gain of the rest of its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Next batches of all jobs, and the workloads that are finished."""

    batches: tuple[ProposedBatch, ...]
    """The most valuable first, at most one for each workload."""

    finished: Mapping[str, Finish]
    """Finished workloads by name."""

    rests: Mapping[str, Rest] = field(default_factory=dict)
    """Rest of each job by name; missing while a relevant workload has had no result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticQuality:
    """Static schedules of one kind of operator, and the gains of trials over them.

    Where these are the best known ones, a search gains nothing: its first batch is small or left out.
    """

    kind: str
    searched: int = 0
    """Workloads that had trials, in all scopes."""

    improved: int = 0
    """Those of them for which a trial was clearly faster."""

    mean_gain: float = 0.0
    """Mean share of its time that a searched workload gained; one without an improvement counts as 0."""

    @property
    def expected_gain(self) -> float:
        """Share of its time that the next workload of this kind should gain, shrunk towards an unknown one's."""
        known = self.searched * self.mean_gain + _UNKNOWN_WEIGHT * UNKNOWN_GAIN
        return known / (self.searched + _UNKNOWN_WEIGHT)

    @property
    def is_enough(self) -> bool:
        """True if trials hardly ever gained anything."""
        return self.searched >= _LEAST_SEARCHED and self.mean_gain < _IMPROVED

    def with_gains(self, gains: Sequence[float]) -> StaticQuality:
        """Return the quality after more searched workloads.

        Args:
            gains: of each one, as `searched_gain` returns them.
        """
        if not gains:
            return self
        searched = self.searched + len(gains)
        return replace(
            self,
            searched=searched,
            improved=self.improved + sum(gain > 0 for gain in gains),
            mean_gain=(self.searched * self.mean_gain + sum(gains)) / searched,
        )


def searched_gain(static_sec: float, best_sec: float, trials: int) -> float | None:
    """Return the share of its time that a workload gained by trials; 0 for noise, None before it was searched.

    Args:
        static_sec: time of its static schedule [s]; infinite if there is none.
        best_sec: time of its fastest schedule with right numbers [s].
        trials: candidates with a time.
    """
    if trials < _LEAST_TRIALS or not static_sec < math.inf:
        return None
    gain = 1 - best_sec / static_sec
    return gain if gain > _IMPROVED else 0.0
