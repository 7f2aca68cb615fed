"""Measurements of a job: batches under way, repeats of disturbed trials, and the end of a batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fleet.domain.measuring import Evaluator, Trial
from fleet.optimizer.core.candidates import CandidateStage
from fleet.optimizer.core.events import Measure, Purpose
from fleet.optimizer.core.job import BASELINE, Job
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.progress import UNTUNED_BOUND
from fleet.optimizer.core.repeats import BUDGET_SHARE, Repeats, main_disturbance
from fleet.optimizer.core.results import Results

if TYPE_CHECKING:
    from fleet.artifacts.artifact import Artifact
    from fleet.domain.measuring import Measurement
    from fleet.optimizer.core import events as ev
    from fleet.optimizer.core.candidates import Candidate
    from fleet.optimizer.core.progress import WorkloadProgress

_BASELINE_EVALUATOR = Evaluator(number=1, repeat=3, min_repeat_ms=5)
"""For unscheduled programs: slow ones run a few times, no more."""

_BASELINE_TIMEOUT_SEC = 60.0
_BASELINE_LOAD_SEC = 5.0
"""Time limit for loading an unscheduled program, in addition to its run time limit."""

_CAREFUL_EVALUATOR = Evaluator(number=1, repeat=5, min_repeat_ms=20)
"""Evaluator for run-offs."""

_GIVE_UP = 2.0
"""An unscheduled program this many times slower than the best candidate stops after one repeat."""

_HOPELESS = 3.0
"""A candidate this many times slower than the best stops after one run."""

_BEHIND = 1.1
"""A candidate stops if the fastest of four runs is this many times slower than the best."""

_NOT_BETTER = 1.03
"""A candidate this many times slower than the best in its first repeat stops there."""

_BASELINE_TRIES = 2
"""Try again: if a device goes away, an unscheduled program is hardly to blame."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """Trials measured together, including repeats of those that were disturbed."""

    purpose: Purpose
    workload: str
    """Hash of the workload; empty for baselines."""

    artifacts: dict[str, Artifact]
    """Artifacts by digest."""

    all_trials: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    """Trials of the current round."""

    seen: list[Measurement] = field(default_factory=list)
    """Results of the current round, in order."""

    repeats: int = 0
    """Repeat rounds so far."""

    tries: int = 1
    """Attempts so far, counting this one; a lost device or a slow model gets another."""


class Measurements:
    """Batches in progress, until all disturbed trials have been repeated."""

    def __init__(self, job: Job, results: Results) -> None:
        self._job = job
        self._results = results
        self._repeats = Repeats(job.progress.repeats)
        self._numbers = itertools.count(1)
        self._batches: dict[int, Batch] = {}
        """Batches by number."""

    def begin_baselines(self, event: ev.BaselinesWanted) -> None:
        """Measure unscheduled programs."""
        self._job.say(News(topic=Topic.TIMING_BASELINES, count=len(event.workloads)))
        trials = [
            self._bounded(self._baseline_trial(shash, shash, self._unless_slower(shash, _BASELINE_EVALUATOR)))
            for shash in event.workloads
        ]
        artifacts = [self._job.baselines[shash] for shash in event.workloads]
        self._begin(Purpose.BASELINES, "", artifacts, trials)

    def _unless_slower(self, shash: str, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator that stops after one repeat if a clearly faster program is known."""
        best_sec = self._job.workload(shash).best_sec
        return replace(evaluator, give_up_above_sec=_GIVE_UP * best_sec) if math.isfinite(best_sec) else evaluator

    def _bounded(self, trial: Trial) -> Trial:
        """Limit the trial of an unscheduled program to two runs of ten times the best time each.

        TVM's evaluator makes a warm-up run before the timed one.
        """
        timeout_sec = _BASELINE_LOAD_SEC + 2 * UNTUNED_BOUND * self._job.workload(trial.candidate_id).best_sec
        return replace(trial, timeout_sec=min(trial.timeout_sec, timeout_sec))

    def begin_batch(self, event: ev.BatchWanted) -> Batch | None:
        """Measure built candidates; return the batch if it is over because there are none."""
        item = self._job.workload(event.workload)
        proposed = [self._job.candidates.get((event.workload, digest)) for digest in event.digests]
        candidates = [c for c in proposed if c is not None and c.stage is CandidateStage.BUILT]
        self._job.say(News(topic=Topic.MEASURING, operator=item.workload.operator))
        evaluator = _beside(item.current_sec, self._job.conditions.evaluator)
        artifacts = [candidate.built.artifact for candidate in candidates]
        trials = [self._trial(candidate, evaluator) for candidate in candidates]
        return self._begin(Purpose.SEARCH, event.workload, artifacts, trials)

    def begin_run_off(self, item: WorkloadProgress, runners: Sequence[Candidate], baseline: Artifact | None) -> None:
        """Time candidates once more, beside the unscheduled program if that takes part."""
        shash, evaluator = item.workload.shash, self._job.conditions.like_trials(_CAREFUL_EVALUATOR)
        artifacts = [candidate.built.artifact for candidate in runners]
        trials = [self._trial(candidate, evaluator) for candidate in runners]
        if baseline is not None:
            # Candidates alone were timed to be the best; the unscheduled program only has to show that it is slower.
            near_sec = _BEHIND * min(candidate.median_sec for candidate in runners)
            artifacts.append(baseline)
            trials.append(self._baseline_trial(shash, BASELINE, replace(evaluator, give_up_above_sec=near_sec)))
        self._begin(Purpose.RUN_OFF, shash, artifacts, trials)

    def _begin(
        self,
        purpose: Purpose,
        workload: str,
        artifacts: Sequence[Artifact],
        trials: Sequence[Trial],
        *,
        tries: int = 1,
    ) -> Batch | None:
        """Measure; return the batch if there are no trials."""
        batch = Batch(
            purpose=purpose,
            workload=workload,
            artifacts={artifact.digest: artifact for artifact in artifacts},
            trials=tuple(trials),
            all_trials=tuple(trials),
            tries=tries,
        )
        number = next(self._numbers)
        self._batches[number] = batch
        if not trials:
            return self._finish(number, batch)
        self._request(number, batch.trials)
        return None

    def _request(self, number: int, trials: tuple[Trial, ...], pause_sec: float = 0.0) -> None:
        artifacts = self._batches[number].artifacts
        wanted = dict.fromkeys(trial.artifact_digest for trial in trials)
        self._job.emit(Measure(number, tuple(artifacts[digest] for digest in wanted), trials, pause_sec))

    def measure(self, event: ev.Measured) -> None:
        """Store one result."""
        batch, measurement = self._batches[event.batch], event.measurement
        batch.seen.append(measurement)
        is_new_trial = batch.purpose is Purpose.SEARCH and batch.repeats == 0
        progress = self._job.progress
        left = progress.trials_total - progress.trials_done - len(self._results.unstored) - is_new_trial
        self._repeats.note(measurement, is_again=batch.repeats > 0, trials_left=max(0, left))
        is_baseline = batch.purpose is Purpose.BASELINES
        workload = measurement.candidate_id if is_baseline else batch.workload
        digest = BASELINE if is_baseline else measurement.candidate_id
        self._results.keep(workload, digest, measurement, purpose=batch.purpose, on=event.device_name)

    def end(self, event: ev.MeasureEnded) -> Batch | None:
        """Repeat disturbed trials of a batch; return the batch if it is over."""
        batch = self._batches[event.batch]
        if batch.purpose is Purpose.SEARCH:
            self._note_cost(self._job.workload(batch.workload), batch, event.wall_sec)
        if event.is_suspected:
            self._job.notify(News(topic=Topic.DEVICE_SUSPECTED, device=event.device_name))
            return self._finish(event.batch, batch)
        if self._repeat(event, batch):
            return None
        if self._repeats.has_just_given_up(event.device_name, made=batch.repeats):
            self._tell(Topic.STAYS_DISTURBED, event.device_name, main_disturbance(batch.seen))
        return self._finish(event.batch, batch)

    def _repeat(self, event: ev.MeasureEnded, batch: Batch) -> bool:
        """Repeat disturbed trials of a batch, as far as it pays; return False if none is repeated."""
        count, was_spent = self._job.progress.repeats, self._job.progress.repeats.is_spent
        again = self._repeats.choose(event.device_name, tuple(batch.seen), batch.trials, made=batch.repeats)
        if count.is_spent and not was_spent:
            self._tell(Topic.REPEATS_SPENT, event.device_name, main_disturbance(batch.seen))
        if again is None:
            return False
        self._job.say(News(topic=Topic.REPEATING, count=len(again.trials), detail=again.reason))
        if not count.count:
            self._tell(Topic.DEVICE_DISTURBED, event.device_name, again.reason)
        batch.repeats += 1
        batch.seen.clear()
        batch.trials = again.trials
        self._request(event.batch, again.trials, again.pause_sec)
        return True

    def _tell(self, topic: Topic, device: str, disturbance: str) -> None:
        self._job.notify(News(topic=topic, device=device, detail=disturbance, limit=BUDGET_SHARE))

    def _note_cost(self, item: WorkloadProgress, batch: Batch, wall_sec: float) -> None:
        """Separate the time of trials from the round trip, which is constant per batch."""
        told_sec = math.fsum(measured.clocks.load_sec + measured.clocks.run_sec for measured in batch.seen)
        trials_sec = min(told_sec, wall_sec) if told_sec else wall_sec
        item.device_sec += trials_sec
        self._job.progress.rounds.count += 1
        self._job.progress.rounds.idle_sec += wall_sec - trials_sec

    def _finish(self, number: int, batch: Batch) -> Batch:
        del self._batches[number]
        if batch.purpose is Purpose.BASELINES:
            self._finish_baselines(batch)
        return batch

    def _finish_baselines(self, batch: Batch) -> None:
        """Repeat baselines whose device was lost; after a second loss, close their workload."""
        open_ones = [
            trial
            for trial in batch.all_trials
            if not math.isfinite(self._job.workload(trial.candidate_id).untuned_sec)
            and not self._job.workload(trial.candidate_id).closing
        ]
        if batch.tries < _BASELINE_TRIES and open_ones:
            artifacts = [batch.artifacts[trial.artifact_digest] for trial in open_ones]
            self._begin(Purpose.BASELINES, "", artifacts, open_ones, tries=batch.tries + 1)
            return
        for trial in open_ones:
            self._job.workload(trial.candidate_id).close(News(topic=Topic.BASELINE_NOT_TIMED))

    def _trial(self, candidate: Candidate, evaluator: Evaluator) -> Trial:
        return Trial(
            candidate_id=candidate.digest,
            artifact_digest=candidate.built.artifact.digest,
            args=candidate.built.artifact.args or self._job.workload(candidate.workload).workload.args,
            evaluator=evaluator,
            timeout_sec=self._job.conditions.trial_timeout_sec,
        )

    def _baseline_trial(self, shash: str, candidate_id: str, evaluator: Evaluator) -> Trial:
        return Trial(
            candidate_id=candidate_id,
            artifact_digest=self._job.baselines[shash].digest,
            args=self._job.workload(shash).workload.args,
            evaluator=self._job.conditions.like_trials(evaluator),
            timeout_sec=max(_BASELINE_TIMEOUT_SEC, self._job.conditions.trial_timeout_sec),
        )


def _beside(best_sec: float, evaluator: Evaluator) -> Evaluator:
    """Return an evaluator that times a candidate only while it may be the best; infinite: no best time is known."""
    if not math.isfinite(best_sec):
        return replace(evaluator, look_runs=0)
    return replace(
        evaluator,
        give_up_above_sec=_NOT_BETTER * best_sec,
        hopeless_above_sec=_HOPELESS * best_sec,
        behind_above_sec=_BEHIND * best_sec,
    )
