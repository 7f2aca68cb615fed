"""The optimizer's state for one job: `apply(event)` changes it and returns effects. No I/O, no clock, no loop.

It is composed of parts that share the job's tables (`job`) and own the rest of their state: proposals (searches and
backlogs), results (stored first, then applied), measurements (batches and repeats) and verdicts (checks, finalists,
proofs). Facts from outside that have no effects are plain methods.

A candidate changes its stage (proposed, built, recorded, checked) only in this package, which alone writes a job's
progress. These rules hold after every event (`fleet.optimizer.core.invariants` checks them):

- A result is stored before anything else happens to its candidate: it counts once stored, not once measured.
- A candidate counts as one trial, however often it is measured; a job never plans more trials than it may have.
- The best candidate of a workload was checked, and a schedule slower than the unscheduled program is not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from fleet.optimizer.core import events as ev
from fleet.optimizer.core.job import Job
from fleet.optimizer.core.kinds import TrialsOfKinds
from fleet.optimizer.core.measurements import Batch, Measurements
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.planning import floor_sec, is_alone, least_sec, searches_beside_builds
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.core.proposals import Proposals
from fleet.optimizer.core.results import Results
from fleet.optimizer.core.verdicts import Verdicts

if TYPE_CHECKING:
    from fleet.domain.observation import Observation
    from fleet.domain.roofline import Roofline
    from fleet.domain.workload import Workload
    from fleet.optimizer.conditions import Conditions
    from fleet.optimizer.core.candidates import Candidate
    from fleet.optimizer.core.progress import Phase, WorkloadProgress


class JobCore:
    """One job. The listener of its progress is called after each event and each new activity."""

    def __init__(self, progress: JobProgress | None = None, kinds: TrialsOfKinds | None = None) -> None:
        """Args: kinds: the trials of a job with several kinds of boards; None: it has one kind."""
        self.progress = progress or JobProgress()
        self._kinds = kinds or TrialsOfKinds()
        self._seat = self._kinds.seat(self.progress)
        self._job = Job(self.progress)
        self.results = Results(self._job)
        self._proposals = Proposals(self._job, self.results, self._seat)
        self._measurements = Measurements(self._job, self.results)
        self._verdicts = Verdicts(self._job, self._measurements)
        self._appliers: dict[type, Callable[..., None]] = {
            ev.RoundWanted: self._proposals.begin_round,
            ev.AheadWanted: self._proposals.search_ahead,
            ev.EndWanted: self._proposals.end_search,
            ev.StaticWanted: self._proposals.begin_static,
            ev.Found: self._proposals.find,
            ev.Proposed: self._proposals.propose,
            ev.SearchFailed: self._proposals.fail_search,
            ev.Learnt: self._proposals.note_learning,
            ev.LearningFailed: self._proposals.fail_learning,
            ev.Built: self._proposals.build,
            ev.BuildFailed: self._proposals.fail_build,
            ev.BaselineBuilt: lambda event: self._job.baselines.update({event.workload: event.artifact}),
            ev.BaselinesWanted: self._measurements.begin_baselines,
            ev.BatchWanted: lambda event: self._judge(self._measurements.begin_batch(event)),
            ev.Measured: self._measurements.measure,
            ev.MeasureEnded: lambda event: self._judge(self._measurements.end(event)),
            ev.RunOffWanted: self._verdicts.begin_run_off,
            ev.ReferenceMade: self._verdicts.make_reference,
            ev.ReferenceFailed: self._verdicts.fail_reference,
            ev.Checked: self._verdicts.check,
            ev.ProofWanted: lambda event: self._verdicts.prove_best(self.workload(event.workload)),
            ev.Proven: self._verdicts.prove,
        }

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        """Change the state by one event and return its effects, in order."""
        self._appliers[type(event)](event)
        self.progress.listener()
        return self._job.take_effects()

    def say(self, activity: str, phase: Phase | None = None) -> None:
        """Record an activity outside of the core, and the phase that begins with it, if any."""
        self._job.say(News(topic=Topic.TEXT, detail=activity), phase)
        self.progress.listener()

    def set_title(self, title: str) -> None:
        """Name the job for people."""
        self.progress.title = title

    def use_device(self, name: str, model: str) -> None:
        """Set the device that measures."""
        self.progress.device_name, self.progress.device_model = name, model

    def use_snapshot(self, digest: str) -> None:
        """Set the snapshot of the shared cost model that searches use from now on."""
        self.progress.snapshot = digest

    def start(
        self, conditions: Conditions, trials_total: int, workloads: Sequence[WorkloadProgress], *, overdrawn: int = 0
    ) -> None:
        """Begin a job that is in the library.

        Args:
            overdrawn: trials that an interrupted run spent beyond its share; other kinds of boards get less.
        """
        self._job.start(conditions, trials_total, workloads)
        self._kinds.owe(overdrawn)

    def choose_workloads(self, top: int | None) -> None:
        """Sort by weighted time and keep `top`, or all if None; the rest of the job sees only these."""
        ranked = sorted(self.progress.workloads, key=lambda item: -item.workload.weight * min(item.current_sec, 1e9))
        self.progress.workloads = ranked[:top]

    def limit(self, roofline: Roofline) -> None:
        """Set the minimum times of all workloads by the device's limits."""
        for item in self.progress.workloads:
            item.least_sec = least_sec(item.workload, roofline)
            item.floor_sec = floor_sec(item.workload, roofline)

    def recall(self, workload: str, observations: Sequence[Observation]) -> None:
        """Replace records of earlier jobs by the same ones with features."""
        item, found = self.workload(workload), {one.trace_json: one for one in observations}
        item.records = [found.get(record.trace_json, record) for record in item.records]

    def learn_from_others(
        self, workload: str, observations: Sequence[Observation], *, right: Mapping[str, float], refuted: Set[str]
    ) -> None:
        """Add the trials of other jobs on a workload. Their gain is no outcome of this job's batches.

        Args:
            observations: their new trials.
            right: times of the fastest candidates with right numbers [s], by trace.
            refuted: traces of candidates with wrong numbers or unproven times.
        """
        item = self.workload(workload)
        known = {record.trace_json for record in item.records}
        new = [one for one in observations if one.trace_json not in known]
        item.records += new
        item.trials_before += len(new)
        item.of_others |= {one.trace_json for one in new}
        for trace in refuted & item.of_others:
            item.retime(trace, math.inf)
        own = {trace: sec for trace, sec in item.right.items() if trace not in item.of_others}
        before_sec = item.current_sec
        item.right = own | {trace: sec for trace, sec in right.items() if trace in item.of_others}
        if item.current_sec < before_sec:
            item.judged_sec = min(item.judged_sec, item.current_sec)
        self.progress.listener()

    def searched_no_more(self) -> frozenset[str]:
        """Return the workloads that get no more trials, and have none under way."""
        closed = [item for item in self.progress.workloads if item.closing is not None]
        return frozenset(item.workload.shash for item in closed if not item.under_way and not item.asked)

    def charge(self, device_sec: float) -> None:
        """Set the device time that the job is charged [s]."""
        self.progress.charged_sec = device_sec

    def begin_search(self) -> None:
        """Start counting each workload's gains: all possible baselines are available."""
        for item in self.progress.workloads:
            item.judged_sec = item.current_sec

    def finish_search(self) -> None:
        """Leave the remaining trials to the job's other kinds of boards."""
        self._seat.is_over = True

    @property
    def is_held_back(self) -> bool:
        """True if the next batch waits for a more valuable one on another kind of boards."""
        return self._proposals.is_held_back

    def note_stored(self, stored: ev.Stored) -> None:
        """Apply a result with a stored record."""
        self.results.apply(stored)

    @property
    def conditions(self) -> Conditions:
        """Conditions of all candidates.

        Raises:
            InvalidRequest: no job was started yet.
        """
        return self._job.conditions

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """All workloads of the model, including those that this job does not tune."""
        return self._job.workloads

    @property
    def candidates(self) -> dict[tuple[str, str], Candidate]:
        """Candidates under way, and finalists, by workload and digest."""
        return self._job.candidates

    def workload(self, shash: str) -> WorkloadProgress:
        """Return the progress of one workload."""
        return self._job.workload(shash)

    @property
    def is_alone(self) -> bool:
        """True if there is one workload left to tune."""
        return is_alone(self.progress)

    @property
    def searches_beside_builds(self) -> bool:
        """True if a search goes on while a batch is built."""
        return searches_beside_builds(self.progress, self.conditions)

    @property
    def has_trials_left(self) -> bool:
        """True if there are unplanned trials, and a workload that may have them."""
        return self._proposals.has_trials_left

    def _judge(self, batch: Batch | None) -> None:
        """Check the candidates of a batch of the search once it is over."""
        if batch is not None and batch.purpose is ev.Purpose.SEARCH:
            self._verdicts.judge_batch(batch)
