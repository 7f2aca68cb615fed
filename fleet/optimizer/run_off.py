"""The last comparison: the best few candidates of a workload timed once more, so that luck does not choose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import aclosing

from fleet.measuring import Evaluator, Trial
from fleet.optimizer.candidates import Candidate, Conditions
from fleet.optimizer.checker import Checker
from fleet.optimizer.progress import WorkloadProgress
from fleet.optimizer.recorder import Recorder
from fleet.optimizer.repeats import Repeats

FINALISTS = 3
"""Candidates of each workload that are kept for it."""

_EVALUATOR = Evaluator(number=1, repeat=5, min_repeat_ms=20)
_REACH = 1.3
"""Only candidates within this factor of the best time take part."""


class RunOff:
    """Keeps the finalists of each workload, with their artifacts, and times them at the end."""

    def __init__(self, *, conditions: Conditions, repeats: Repeats, checker: Checker, recorder: Recorder) -> None:
        self._conditions = conditions
        self._repeats = repeats
        self._checker = checker
        self._recorder = recorder
        self._finalists: dict[str, list[Candidate]] = {}

    def enter(self, item: WorkloadProgress, batch: Sequence[Candidate]) -> None:
        """Add a measured batch."""
        known = self._finalists.get(item.workload.shash, [])
        ranked = sorted((c for c in [*known, *batch] if c.built is not None), key=lambda c: c.median_sec)
        self._finalists[item.workload.shash] = ranked[:FINALISTS]

    async def hold(self, item: WorkloadProgress) -> None:
        """Time the finalists of one workload and let the fastest be its best."""
        finalists = [c for c in self._finalists.get(item.workload.shash, []) if math.isfinite(c.median_sec)]
        close = [c for c in finalists if c.median_sec <= _REACH * finalists[0].median_sec]
        runners = {c.digest: c for c in close if await self._checker.is_right(item, c)}
        trials = [
            Trial(
                candidate_id=digest,
                artifact_digest=candidate.artifact.digest,
                args=item.workload.args,
                evaluator=self._conditions.like_trials(_EVALUATOR),
                timeout_sec=self._conditions.trial_timeout_sec,
            )
            for digest, candidate in runners.items()
        ]
        times: dict[str, float] = {}
        async with aclosing(self._repeats.measure([c.artifact for c in runners.values()], trials)) as measurements:
            async for measurement in measurements:
                candidate = runners[measurement.candidate_id]
                await self._recorder.store(item, measurement, candidate=candidate, checked=True)
                if measurement.error is None:
                    times[candidate.trace_json] = measurement.median_sec
        item.settle(times)
