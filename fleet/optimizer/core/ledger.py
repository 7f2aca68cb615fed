"""What the core knows about a job. The other parts of the core build on it."""

from __future__ import annotations

from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Measurement
from fleet.errors import InvalidRequest
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.entries import Batch, Candidate, Checking
from fleet.optimizer.core.progress import JobProgress, Phase, WorkloadProgress

BASELINE = "baseline"
"""Stands in for a trace's digest where a program has no schedule."""


class Ledger:
    """The state of one job, and the effects that an event has had so far."""

    def __init__(self, progress: JobProgress) -> None:
        self.progress = progress
        self.candidates: dict[tuple[str, str], Candidate] = {}
        """Candidates under way, and finalists, by workload and digest."""

        self.batches: dict[int, Batch] = {}
        """Batches under way, by number."""

        self.checking: dict[str, Checking] = {}
        """Checks under way, by workload."""

        self.unstored: dict[tuple[str, str], tuple[int, Measurement]] = {}
        """Results whose record is not in the library yet, with their batch number; 0: no batch."""

        self.baselines: dict[str, Artifact] = {}
        """Unscheduled programs by workload."""

        self.counted: set[tuple[str, str]] = set()
        """Candidates that count as trials of this job, by workload and digest."""

        self._workloads: dict[str, WorkloadProgress] = {}
        self._conditions: Conditions | None = None
        self._effects: list[ev.Effect] = []

    @property
    def conditions(self) -> Conditions:
        """What all candidates have in common.

        Raises:
            InvalidRequest: no job was started yet.
        """
        if self._conditions is None:
            raise InvalidRequest("the job has not been started")
        return self._conditions

    def workload(self, shash: str) -> WorkloadProgress:
        """Return where one workload stands."""
        return self._workloads[shash]

    def _say(self, activity: str, phase: Phase | None = None) -> None:
        """Record the current activity, and the phase that begins with it, if any."""
        self.progress.activity = activity
        self.progress.phase = phase or self.progress.phase

    def _notify(self, text: str) -> None:
        self._effects.append(ev.Notice(text))


def close(item: WorkloadProgress, reason: str) -> None:
    """Give a workload no more trials. The first reason stays."""
    item.closed_because = item.closed_because or reason


def artifact_of(candidate: Candidate) -> Artifact:
    """Return the artifact of a candidate.

    Raises:
        InvalidRequest: it was not built.
    """
    if candidate.artifact is None:
        raise InvalidRequest(f"candidate {candidate.digest} has no artifact")
    return candidate.artifact
