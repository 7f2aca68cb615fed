"""Decides what is measured and how, what is repeated, and when a batch is finished."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from fleet.artifacts.artifact import Artifact
from fleet.base.quantities import count_text
from fleet.domain.measuring import Evaluator, Trial
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.entries import Batch, Candidate, CandidateStage, Purpose
from fleet.optimizer.core.ledger import BASELINE, artifact_of, close
from fleet.optimizer.core.progress import UNTUNED_BOUND, JobProgress, WorkloadProgress
from fleet.optimizer.core.repeats import BUDGET_SHARE, Repeats, main_disturbance
from fleet.optimizer.core.searching import Searching

_BASELINE_EVALUATOR = Evaluator(number=1, repeat=3, min_repeat_ms=5)
"""For unscheduled programs: slow ones run a few times, no more."""

_BASELINE_TIMEOUT_SEC = 60.0
_BASELINE_LOAD_SEC = 5.0
"""Time limit for loading an unscheduled program, in addition to its run time limit."""

CAREFUL_EVALUATOR = Evaluator(number=1, repeat=5, min_repeat_ms=20)
"""Evaluator for run-offs."""

_GIVE_UP = 2.0
"""An unscheduled program this many times slower than the best candidate stops after one repeat."""

_HOPELESS = 3.0
"""A candidate this many times slower than the best stops after one run."""

_BEHIND = 1.1
"""A candidate whose fastest of four runs is this many times slower than the best stops there."""

_NOT_BETTER = 1.03
"""A candidate this many times slower than the best in its first repeat stops there."""

_BASELINE_TRIES = 2
"""Try again: if a device goes away, an unscheduled program is hardly to blame."""


class Measuring(Searching):
    """Keeps batches under way until everything disturbed has been measured again."""

    def __init__(self, progress: JobProgress) -> None:
        super().__init__(progress)
        self._repeats = Repeats(progress.repeats)
        self._numbers = itertools.count(1)
        self._finishers: dict[Purpose, Callable[[Batch], None]] = {
            Purpose.BASELINES: self._finish_baselines,
        }

    def _begin_baselines(self, event: ev.BaselinesWanted) -> None:
        self._say(f"timing {count_text(len(event.workloads), 'unscheduled program')}")
        trials = [
            self._bounded(self._baseline_trial(shash, shash, self._unless_slower(shash, _BASELINE_EVALUATOR)))
            for shash in event.workloads
        ]
        self._begin_measuring(Purpose.BASELINES, "", [self.baselines[shash] for shash in event.workloads], trials)

    def _unless_slower(self, shash: str, evaluator: Evaluator) -> Evaluator:
        """Return an evaluator that stops after one repeat where a clearly faster program is known."""
        best_sec = self.workload(shash).best_sec
        return replace(evaluator, give_up_above_sec=_GIVE_UP * best_sec) if math.isfinite(best_sec) else evaluator

    def _bounded(self, trial: Trial) -> Trial:
        """Limit the trial of an unscheduled program to two runs of ten times the best time each.

        TVM's evaluator makes a warm-up run before the timed one.
        """
        timeout_sec = _BASELINE_LOAD_SEC + 2 * UNTUNED_BOUND * self.workload(trial.candidate_id).best_sec
        return replace(trial, timeout_sec=min(trial.timeout_sec, timeout_sec))

    def _begin_batch(self, event: ev.BatchWanted) -> None:
        item = self.workload(event.workload)
        proposed = [self.candidates.get((event.workload, digest)) for digest in event.digests]
        candidates = [c for c in proposed if c is not None and c.stage is CandidateStage.BUILT]
        self._say(f"measuring {item.workload.operator}")
        evaluator = self.conditions.evaluator
        evaluator = _beside(item.current_sec, evaluator)
        self._begin_measuring(
            Purpose.SEARCH,
            event.workload,
            [artifact_of(candidate) for candidate in candidates],
            [self._trial(candidate, evaluator) for candidate in candidates],
        )

    def _begin_measuring(
        self, purpose: Purpose, workload: str, artifacts: list[Artifact], trials: list[Trial], *, tries: int = 1
    ) -> None:
        batch = Batch(
            purpose=purpose,
            workload=workload,
            artifacts={artifact.digest: artifact for artifact in artifacts},
            trials=tuple(trials),
            all_trials=tuple(trials),
            tries=tries,
        )
        number = next(self._numbers)
        self.batches[number] = batch
        if trials:
            self._ask_to_measure(number, batch.trials)
        else:
            self._finish(number, batch)

    def _ask_to_measure(self, number: int, trials: tuple[Trial, ...], pause_sec: float = 0.0) -> None:
        artifacts = self.batches[number].artifacts
        wanted = dict.fromkeys(trial.artifact_digest for trial in trials)
        self._effects.append(ev.Measure(number, tuple(artifacts[digest] for digest in wanted), trials, pause_sec))

    def _measure(self, event: ev.Measured) -> None:
        batch, measurement = self.batches[event.batch], event.measurement
        batch.seen.append(measurement)
        is_new_trial = batch.purpose is Purpose.SEARCH and batch.repeats == 0
        left = self.progress.trials_total - self.progress.trials_done - len(self.unstored) - is_new_trial
        self._repeats.note(measurement, is_again=batch.repeats > 0, trials_left=max(0, left))
        if measurement.error is None:
            batch.times[measurement.candidate_id] = measurement.median_sec
        is_baseline = batch.purpose is Purpose.BASELINES
        workload = measurement.candidate_id if is_baseline else batch.workload
        digest = BASELINE if is_baseline else measurement.candidate_id
        self._ask_to_store(event.batch, workload, digest, measurement, on=event.device_name)

    def _end_measuring(self, event: ev.MeasureEnded) -> None:
        batch = self.batches[event.batch]
        if batch.purpose is Purpose.SEARCH:
            self._note_cost(self.workload(batch.workload), batch, event.wall_sec)
        count, seen, was_spent = self.progress.repeats, tuple(batch.seen), self.progress.repeats.is_spent
        device = event.device_name or "the device"
        if event.is_suspected:
            self._notify(
                f"{device}: several candidates in a row failed; releasing the device until its agent reports it healthy"
            )
            self._finish(event.batch, batch)
            return
        again = self._repeats.choose(event.device_name, seen, batch.trials, made=batch.repeats)
        if count.is_spent and not was_spent:
            self._notify(
                f"{device} is still disturbed ({main_disturbance(seen)}), and repeated measurements have reached their "
                f"limit of {BUDGET_SHARE:.0%} of the measuring time; later disturbed times are kept, with a note"
            )
        if again is not None:
            self._say(f"repeating {count_text(len(again.trials), 'measurement')}: {again.reason}")
            if not count.count:
                self._notify(
                    f"{device} is disturbed ({again.reason}); disturbed measurements are repeated, for up to "
                    f"{BUDGET_SHARE:.0%} of the measuring time"
                )
            batch.repeats += 1
            batch.seen.clear()
            batch.trials = again.trials
            self._ask_to_measure(event.batch, again.trials, again.pause_sec)
            return
        if self._repeats.has_just_given_up(event.device_name, made=batch.repeats):
            self._notify(
                f"{device} stays disturbed ({main_disturbance(seen)}); its times are kept, with a note, and no longer "
                "repeated until a batch is undisturbed"
            )
        self._finish(event.batch, batch)

    def _note_cost(self, item: WorkloadProgress, batch: Batch, wall_sec: float) -> None:
        """Tell the time of trials from that of the way there and back, which a batch takes however small it is."""
        told_sec = math.fsum(measured.clocks.load_sec + measured.clocks.run_sec for measured in batch.seen)
        trials_sec = min(told_sec, wall_sec) if told_sec else wall_sec
        item.device_sec += trials_sec
        self.progress.rounds.count += 1
        self.progress.rounds.idle_sec += wall_sec - trials_sec

    def _finish(self, number: int, batch: Batch) -> None:
        del self.batches[number]
        self._finishers[batch.purpose](batch)

    def _finish_baselines(self, batch: Batch) -> None:
        """Measure those again during which the device went away; if it happens again, close their workload."""
        open_ones = [
            trial
            for trial in batch.all_trials
            if not math.isfinite(self.workload(trial.candidate_id).untuned_sec)
            and not self.workload(trial.candidate_id).closed_because
        ]
        if batch.tries < _BASELINE_TRIES and open_ones:
            artifacts = [batch.artifacts[trial.artifact_digest] for trial in open_ones]
            self._begin_measuring(Purpose.BASELINES, "", artifacts, open_ones, tries=batch.tries + 1)
            return
        for trial in open_ones:
            close(self.workload(trial.candidate_id), "its unscheduled program could not be timed")

    def _trial(self, candidate: Candidate, evaluator: Evaluator) -> Trial:
        return Trial(
            candidate_id=candidate.digest,
            artifact_digest=artifact_of(candidate).digest,
            args=artifact_of(candidate).args or self.workload(candidate.workload).workload.args,
            evaluator=evaluator,
            timeout_sec=self.conditions.trial_timeout_sec,
        )

    def _baseline_trial(self, shash: str, candidate_id: str, evaluator: Evaluator) -> Trial:
        return Trial(
            candidate_id=candidate_id,
            artifact_digest=self.baselines[shash].digest,
            args=self.workload(shash).workload.args,
            evaluator=self.conditions.like_trials(evaluator),
            timeout_sec=max(_BASELINE_TIMEOUT_SEC, self.conditions.trial_timeout_sec),
        )


def _beside(best_sec: float, evaluator: Evaluator) -> Evaluator:
    """Return an evaluator that times a candidate only as long as it may be the best; infinite: nothing is known."""
    if not math.isfinite(best_sec):
        return replace(evaluator, look_runs=0)
    return replace(
        evaluator,
        give_up_above_sec=_NOT_BETTER * best_sec,
        hopeless_above_sec=_HOPELESS * best_sec,
        behind_above_sec=_BEHIND * best_sec,
    )
