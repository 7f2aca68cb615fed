"""The optimizer's state for one job: `apply(event)` changes it and returns what follows. No I/O, no clock, no loop.

A candidate changes its state (proposed, built, recorded, checked) only in this room, and only this room writes a job's
progress. These rules hold after every event (`fleet.optimizer.core.invariants` checks them):

- A result is stored before anything else happens to its candidate: it counts once stored, not once measured.
- A candidate counts as one trial, however often it is measured; a job never plans more trials than it may have.
- The best candidate of a workload was checked, and a schedule slower than the unscheduled program is not used.
"""

from __future__ import annotations

from collections.abc import Callable

from fleet.domain.workload import Workload
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.judging import Judging
from fleet.optimizer.core.progress import JobProgress


class JobCore(Judging):
    """One job. Its parts build on each other: ledger, recording, searching, measuring, judging."""

    def __init__(self, progress: JobProgress | None = None) -> None:
        super().__init__(progress or JobProgress())
        self._appliers: dict[type, Callable[..., None]] = {
            ev.Titled: self._title,
            ev.Said: lambda event: self._say(event.activity, event.phase),
            ev.DeviceFound: self._find_device,
            ev.JobStarted: self._start,
            ev.WorkloadsChosen: self._choose_workloads,
            ev.LimitsKnown: self._know_limits,
            ev.FeaturesRecalled: self._recall,
            ev.RoundWanted: self._begin_round,
            ev.AheadWanted: self._search_ahead,
            ev.EndWanted: self._end_search,
            ev.StaticWanted: self._begin_static,
            ev.Found: self._find,
            ev.Proposed: self._propose,
            ev.SearchFailed: self._fail_search,
            ev.Learnt: self._learn,
            ev.LearningFailed: self._fail_learning,
            ev.Built: self._build,
            ev.BuildFailed: self._fail_build,
            ev.BaselineBuilt: self._build_baseline,
            ev.BaselinesWanted: self._begin_baselines,
            ev.BatchWanted: self._begin_batch,
            ev.SearchBegun: self._begin_search,
            ev.RunOffWanted: self._begin_run_off,
            ev.Measured: self._measure,
            ev.MeasureEnded: self._end_measuring,
            ev.Stored: self._store,
            ev.ReferenceMade: self._make_reference,
            ev.ReferenceFailed: self._fail_reference,
            ev.Checked: self._check,
            ev.ProofWanted: self._want_proof,
            ev.Proven: self._prove,
        }

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        """Change the state by one event and return what follows, in order."""
        self._appliers[type(event)](event)
        effects, self._effects = self._effects, []
        return effects

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """All of the model, also those that this job does not tune."""
        return tuple(item.workload for item in self._workloads.values())

    def _title(self, event: ev.Titled) -> None:
        self.progress.title = event.title

    def _find_device(self, event: ev.DeviceFound) -> None:
        self.progress.device_name, self.progress.device_model = event.name, event.model

    def _start(self, event: ev.JobStarted) -> None:
        self._conditions = conditions = event.conditions
        self._workloads = {item.workload.shash: item for item in event.workloads}
        progress = self.progress
        progress.job_name, progress.trials_total = conditions.job_name, event.trials_total
        progress.is_bound_by_time = conditions.is_bound_by_time
        progress.search_sec = conditions.deadline_sec - conditions.started_at
        progress.workloads = list(event.workloads)

    def _choose_workloads(self, event: ev.WorkloadsChosen) -> None:
        """Sort by weighted time and keep `top`; the rest of the job sees only these."""
        ranked = sorted(self.progress.workloads, key=lambda item: -item.workload.weight * min(item.current_sec, 1e9))
        self.progress.workloads = ranked[: event.top]
