"""State of one job that all parts of the core share, and the effects of the current event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleet.errors import InvalidRequest
from fleet.optimizer.core.events import Effect, Notice
from fleet.optimizer.core.news import News

if TYPE_CHECKING:
    from fleet.artifacts.artifact import Artifact
    from fleet.domain.workload import Workload
    from fleet.optimizer.conditions import Conditions
    from fleet.optimizer.core.candidates import Candidate
    from fleet.optimizer.core.progress import JobProgress, Phase, WorkloadProgress

BASELINE = "baseline"
"""Stands in for a trace's digest where a program has no schedule."""


class Job:
    """Shared state of one job."""

    def __init__(self, progress: JobProgress) -> None:
        self.progress = progress
        self.candidates: dict[tuple[str, str], Candidate] = {}
        """Candidates under way, and finalists, by workload and digest."""

        self.baselines: dict[str, Artifact] = {}
        """Unscheduled programs by workload."""

        self._workloads: dict[str, WorkloadProgress] = {}
        self._conditions: Conditions | None = None
        self._effects: list[Effect] = []

    def start(self, conditions: Conditions, trials_total: int, workloads: Sequence[WorkloadProgress]) -> None:
        """Begin with the conditions, limits and workloads of a job in the library."""
        self._conditions = conditions
        self._workloads = {item.workload.shash: item for item in workloads}
        progress = self.progress
        progress.job_name, progress.trials_total = conditions.job_name, trials_total
        progress.is_bound_by_time = conditions.is_bound_by_time
        progress.search_sec = conditions.deadline_sec - conditions.started_at
        progress.workloads = list(workloads)

    @property
    def conditions(self) -> Conditions:
        """Conditions of all candidates.

        Raises:
            InvalidRequest: no job was started yet.
        """
        if self._conditions is None:
            raise InvalidRequest("the job has not been started")
        return self._conditions

    @property
    def workloads(self) -> tuple[Workload, ...]:
        """All workloads of the model, including those that this job does not tune."""
        return tuple(item.workload for item in self._workloads.values())

    def workload(self, shash: str) -> WorkloadProgress:
        """Return the progress of one workload."""
        return self._workloads[shash]

    def say(self, activity: News, phase: Phase | None = None) -> None:
        """Record the current activity, and the phase that begins with it, if any."""
        self.progress.activity = activity
        self.progress.phase = phase or self.progress.phase

    def notify(self, news: News) -> None:
        """Emit an important message to the user."""
        self.emit(Notice(news))

    def emit(self, effect: Effect) -> None:
        """Add an effect of the current event."""
        self._effects.append(effect)

    def take_effects(self) -> list[Effect]:
        """Return the effects of the current event, in order, and clear them."""
        effects, self._effects = self._effects, []
        return effects
