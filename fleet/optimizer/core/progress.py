"""The progress of a tuning job, as its display, the tracker and the final report read it.

Only `fleet.optimizer.core.state` changes any of it.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fleet.domain.measuring import RepeatCount
from fleet.optimizer.core.candidates import Backlog

if TYPE_CHECKING:
    from fleet.checking.weakness import Weakness
    from fleet.domain.measuring import ErrorKind
    from fleet.domain.observation import Observation
    from fleet.domain.workload import Workload
    from fleet.optimizer.core.news import News
    from fleet.optimizer.prioritizer.values import BatchOutcome, ProposedBatch, Rest, StaticQuality

_KEPT_DECISIONS = 8
_KEPT_RESULTS = 257

UNTUNED_BOUND = 10.0
"""Time limit of an unscheduled program, as a multiple of a scheduled program's time."""


@dataclass(slots=True, kw_only=True)
class WorkloadProgress:
    """One workload of a job."""

    workload: Workload
    trials: int = 0
    """Trials in this job."""

    trials_before: int = 0
    """Trials in the library at the job's start, for this device model, target and TVM version; not static schedules."""

    errors: Counter[ErrorKind] = field(default_factory=Counter)
    untuned_sec: float = math.inf
    is_untuned_above: bool = False
    """The unscheduled program was stopped at that time."""

    is_untuned_disturbed: bool = False
    """Something cast doubt on that time, so that any other counts instead."""

    least_sec: float = 0.0
    """Limit of the device's roofline [s]; 0: unknown."""

    static_sec: float = math.inf
    """Time of the schedule that was chosen without a trial [s]."""

    static_trace: str | None = None
    """That schedule; None if it is not known, or failed."""

    right: dict[str, float] = field(default_factory=dict)
    """The time that counts for each candidate whose numbers are right, by its trace [s], on this device model: its
    newest undisturbed one, or its newest when all were disturbed, as `Library.best` has it."""

    proven: dict[str, float] = field(default_factory=dict)
    """Shortest proven time of a candidate, by its trace [s]."""

    unprovable: str = ""
    """Reason why times of its candidates cannot be proven; empty if they can, or before the first attempt."""

    floor_sec: float = 0.0
    """Lower bound, with a wide margin, of any program's time on this device [s]; 0 if it is unknown."""

    batches: int = 0
    """Batches asked for in this job."""

    forecasts: deque[float] = field(default_factory=deque)
    """Share of its time that each batch under way should gain; 0: not known."""

    outcomes: list[BatchOutcome] = field(default_factory=list)
    """Expected and actual gains of its batches."""

    judged_sec: float = math.inf
    """Its time after the last batch [s]."""

    device_sec: float = 0.0
    """Device time that its trials took [s], from loading to the last run."""

    closing: News | None = None
    """Reason why it gets no more trials; None while it may get some."""

    records: list[Observation] = field(default_factory=list)
    """Candidates of this and earlier jobs, the newest last; with features where these are known."""

    quality: StaticQuality | None = None
    """Quality of static schedules of its kind at the job's start; None if it had trials then, or is of no kind."""

    of_others: set[str] = field(default_factory=set)
    """Traces of the candidates that other jobs measured since this one began."""

    shared_with: frozenset[str] = frozenset()
    """Names of other running jobs that searched it at its newest claim: each of n jobs pays 1/n of a trial."""

    seeds: tuple[Observation, ...] = ()
    """Best schedules elsewhere: its first batch begins with those that fit."""

    replayed: list[str] = field(default_factory=list)
    """Traces of other devices for a replay, the fastest first; empty for other searches."""

    under_way: set[str] = field(default_factory=set)
    """Digests of the traces that are under way."""

    taken: set[str] = field(default_factory=set)
    """Digests of the traces that other jobs measure, or have measured."""

    poison: frozenset[str] = frozenset()
    """Digests of the traces under which a device broke down in an earlier job."""

    backlog: Backlog = field(default_factory=Backlog)
    """Candidates searched ahead."""

    is_searched: bool = False
    """A search is under way."""

    search_began_at: int = 0
    """Number of its trials when its newest search began."""

    asked: frozenset[str] = frozenset()
    """Digests of candidates that are being claimed."""

    weakness: Weakness | None = None
    """Reason why the check of its candidates' numbers is weak; None: it is strong, or nothing was checked."""

    @property
    def best_trace(self) -> str | None:
        """The fastest candidate with right numbers; None: there is none yet."""
        return min(self.right, key=self.right.__getitem__, default=None)

    @property
    def best_sec(self) -> float:
        """Its time [s]; infinite: there is none yet."""
        return min(self.right.values(), default=math.inf)

    @property
    def is_proven(self) -> bool:
        """True if the best candidate's time is proven by a clock outside of its process."""
        return self.best_trace is not None and self.proven.get(self.best_trace, math.inf) <= self.best_sec

    @property
    def needs_proof(self) -> bool:
        """True if the model gets a schedule that was chosen by its time, and that time is not proven.

        A static schedule is chosen by rules, and its code is the fleet's own.
        """
        return self.uses_schedule and self.best_trace != self.static_trace and not self.is_proven

    @property
    def uses_schedule(self) -> bool:
        """True if the model gets the best candidate: the unscheduled program is slower."""
        return self.best_trace is not None and self.best_sec < self.untuned_sec

    @property
    def current_sec(self) -> float:
        """Current time in the model [s]: the best checked candidate, or the unscheduled program."""
        return min(self.best_sec, self.untuned_sec)

    @property
    def speedup(self) -> float:
        """Unscheduled time over current time; 1.0 while nothing better is known."""
        return self.untuned_sec / self.current_sec if math.isfinite(self.untuned_sec) else 1.0

    def close(self, reason: News) -> None:
        """Give it no more trials. The first reason stays."""
        self.closing = self.closing or reason

    def retime(self, trace_json: str, run_sec: float, *, is_disturbed: bool = False) -> None:
        """Tell the search a candidate's new time [s]; infinite if it failed."""
        self.records = [
            replace(record, run_sec=run_sec, is_disturbed=is_disturbed) if record.trace_json == trace_json else record
            for record in self.records
        ]


@dataclass(slots=True, kw_only=True)
class BuilderCount:
    """Processor time of search, including training, and of builds, as far as reported [s]."""

    searches: int = 0
    search_sec: float = 0.0
    builds: int = 0
    build_sec: float = 0.0


@dataclass(slots=True, kw_only=True)
class RoundCount:
    """Batches that were measured, and how long devices waited for them or for their results [s]."""

    count: int = 0
    idle_sec: float = 0.0


class Phase(enum.StrEnum):
    """Phases of a job in their usual order. Each consists of activities."""

    IMPORT = "import"
    DEVICE = "device"
    WORKLOADS = "workloads"
    STATIC = "static schedules"
    SEARCH = "search"
    CHOICE = "choice"
    MODEL = "whole model"


@dataclass(slots=True, kw_only=True)
class JobProgress:
    """One job. `listener` is called after every change, `notice` with each message that a user should not miss."""

    title: str = ""
    job_name: str = ""
    device_name: str = ""
    device_model: str = ""
    activity: News | None = None
    phase: Phase = Phase.IMPORT
    trials_total: int = 0
    """Most trials that it makes."""

    is_bound_by_time: bool = False
    search_sec: float = math.inf
    """Time limit of its search from its start [s]."""

    rest: Rest | None = None
    """Expected gain of the rest of the search; None: not known yet."""

    is_ended_early: bool = False
    """The search ended because the next part of its budget should gain too little."""

    workloads: list[WorkloadProgress] = field(default_factory=list)
    first_trial_sec: float | None = None
    """From the start of the process to the first measured candidate [s]."""

    charged_sec: float = 0.0
    """Device time that the job is charged, including its part of trials that other jobs measured [s]."""

    last_record_sec: float | None = None
    results_at_sec: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT_RESULTS))
    """Moments of the newest trials' results since the start of the process [s]."""

    repeats: RepeatCount = field(default_factory=RepeatCount)
    builders: BuilderCount = field(default_factory=BuilderCount)
    rounds: RoundCount = field(default_factory=RoundCount)
    decisions: deque[ProposedBatch] = field(default_factory=lambda: deque(maxlen=_KEPT_DECISIONS))
    """The prioritizer's newest, oldest first."""

    planned: Sequence[ProposedBatch] = ()
    """The batches that would be next, the most valuable first."""

    snapshot: str = ""
    """Digest of the shared cost model's snapshot that searches ask; empty: the one that comes with the package."""

    listener: Callable[[], None] = lambda: None
    notice: Callable[[str], None] = lambda text: None

    @property
    def worth(self) -> float:
        """Worth of the next batch in the prioritizer's currency; infinite before the first plan."""
        planned = self.planned  # read once: the list is replaced while another thread uses it
        return planned[0].reason.worth if planned else math.inf

    @property
    def trials_done(self) -> int:
        return sum(item.trials for item in self.workloads)

    @property
    def trials_known(self) -> int:
        """Number of trials, those in the library at the job's start included."""
        return sum(item.trials_before + item.trials for item in self.workloads)

    @property
    def trials_asked(self) -> int:
        """Number of requested trials; 0: as many as fit into its time."""
        return 0 if self.is_bound_by_time else self.trials_total

    @property
    def trials_repeated(self) -> int:
        return self.repeats.count

    @property
    def trials_failed(self) -> int:
        return sum(item.errors.total() for item in self.workloads)

    def total_sec(self, *, tuned: bool) -> float:
        """Weighted sum over the workloads with a known unscheduled time [s]."""
        return sum(
            item.workload.weight * (item.current_sec if tuned else item.untuned_sec)
            for item in self.workloads
            if math.isfinite(item.untuned_sec)
        )
