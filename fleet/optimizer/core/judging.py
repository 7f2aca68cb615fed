"""Decides which candidates are checked, and which of the right ones is the best, per batch and in the run-off."""

from __future__ import annotations

import math
from collections import deque

from fleet.base.quantities import time_text
from fleet.domain.proving import Proof, ProofVerdict
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.entries import Batch, Candidate, CandidateStage, Checking, Purpose
from fleet.optimizer.core.ledger import BASELINE, artifact_of, close
from fleet.optimizer.core.measuring import CAREFUL_EVALUATOR, Measuring
from fleet.optimizer.core.planning import keep_outcome
from fleet.optimizer.core.progress import JobProgress, Phase, WorkloadProgress

_FINALISTS = 3
"""Candidates of each workload that are kept for the run-off."""

_REACH = 1.3
"""Only candidates within this factor of the best time take part."""

_BASELINE_REACH = 2.0
"""The unscheduled program does not take part if it was slower than the best by this factor."""

_BASELINE_REACH_OF_STATIC = 1.3
"""The same for a lone static schedule: its time is recent, and not the luckiest of many."""

_CHECKED_PER_BATCH = 3
"""How many candidates of a batch are compared before giving up on finding a right one."""

_UNMEASURED = (CandidateStage.PROPOSED, CandidateStage.BUILT)


class Judging(Measuring):
    """Has numbers compared, keeps the finalists, and holds the run-off."""

    def __init__(self, progress: JobProgress) -> None:
        super().__init__(progress)
        self._finalists: dict[str, list[Candidate]] = {}
        self._finishers[Purpose.SEARCH] = self._finish_batch
        self._finishers[Purpose.RUN_OFF] = lambda batch: None  # whoever ran has its newest time by now

    def _finish_batch(self, batch: Batch) -> None:
        self._release_unmeasured(batch)
        wanted = [self.candidates.get((batch.workload, trial.candidate_id)) for trial in batch.all_trials]
        measured = [candidate for candidate in wanted if candidate is not None]
        timed = sorted((c for c in measured if math.isfinite(c.median_sec)), key=lambda c: c.median_sec)
        self.checking[batch.workload] = Checking(purpose=Purpose.SEARCH, waiting=deque(timed[:_CHECKED_PER_BATCH]))
        self._check_next(batch.workload)

    def _release_unmeasured(self, batch: Batch) -> None:
        """Forget those that were not sent, as nothing is known of them: they may be proposed again."""
        for trial in batch.all_trials:
            key = batch.workload, trial.candidate_id
            if key in self.candidates and self.candidates[key].stage is CandidateStage.BUILT:
                self.workload(batch.workload).under_way.discard(trial.candidate_id)
                del self.candidates[key]

    def _make_reference(self, event: ev.ReferenceMade) -> None:
        self.workload(event.workload).weakness = event.weakness

    def _fail_reference(self, event: ev.ReferenceFailed) -> None:
        item = self.workload(event.workload)
        close(item, f"its numbers cannot be checked: {event.message}")
        self._notify(f"{item.workload.operator} gets no more trials: its numbers cannot be checked: {event.message}")

    def _check_next(self, workload: str) -> None:
        """Ask for the next comparison. During a search, one candidate that is right and the best so far is enough."""
        checking, item = self.checking[workload], self.workload(workload)
        while checking.waiting:
            candidate = checking.waiting[0]
            if checking.purpose is Purpose.SEARCH and candidate.median_sec >= item.best_sec:
                break
            if candidate.median_sec < item.floor_sec:
                checking.waiting.popleft()
                candidate.stage = CandidateStage.OUT
                self._refuse(item, candidate, _too_fast(candidate, item.floor_sec))
                continue
            if candidate.stage is not CandidateStage.CHECKED:
                artifact, claimed_sec = artifact_of(candidate), 0.0 if candidate.is_static else candidate.median_sec
                self._effects.append(
                    ev.CheckOutputs(workload, candidate.digest, artifact, candidate.packings, claimed_sec)
                )
                return
            checking.right.append(checking.waiting.popleft())
        del self.checking[workload]
        if checking.purpose is Purpose.SEARCH:
            self._keep_finalists(item)
            keep_outcome(item)
        else:
            self._run_off(item, checking.right)

    def _check(self, event: ev.Checked) -> None:
        item, checking = self.workload(event.workload), self.checking[event.workload]
        candidate = checking.waiting.popleft()
        if event.verdict is ev.Verdict.RIGHT:
            candidate.stage = CandidateStage.CHECKED
            if candidate.record_id is not None:
                self._effects.append(ev.MarkChecked(candidate.record_id))
            checking.right.append(candidate)
            item.right[candidate.trace_json] = candidate.median_sec
            if event.proof is not None:
                self._keep_proof(item, candidate.trace_json, event.proof)
        else:
            candidate.stage = CandidateStage.OUT
        if event.verdict is ev.Verdict.WRONG:
            self._reject(item, candidate, event.message)
        elif event.verdict is ev.Verdict.NOT_PROVEN and event.proof is not None:
            self._refuse(item, candidate, event.proof)
        self._check_next(event.workload)

    def _keep_proof(self, item: WorkloadProgress, trace_json: str, proof: Proof) -> None:
        """Record a proof that does not refute the time."""
        if proof.is_proven:
            item.proven[trace_json] = proof.least_sec
            self._effects.append(ev.KeepProof(item.workload.shash, trace_json, proof))
        elif proof.verdict is ProofVerdict.IMPOSSIBLE:
            item.unprovable = proof.message

    def _want_proof(self, event: ev.ProofWanted) -> None:
        """Request a proof of the best schedule, if an earlier job found it or no earlier proof succeeded."""
        self._prove_best(self.workload(event.workload))

    def _prove_best(self, item: WorkloadProgress) -> None:
        if item.best_trace is None or not item.needs_proof or item.unprovable:
            return
        self._say("proving the times of the best candidates")
        shash = item.workload.shash
        built = (one for one in self._finalists.get(shash, ()) if one.trace_json == item.best_trace)
        known = next((one for one in built if one.artifact is not None), None)
        self._effects.append(
            ev.Prove(
                workload=shash,
                trace_json=item.best_trace,
                claimed_sec=item.best_sec,
                artifact=known.artifact if known else None,
                packings=known.packings if known else (),
            )
        )

    def _prove(self, event: ev.Proven) -> None:
        item, proof = self.workload(event.workload), event.proof
        if proof.verdict is ProofVerdict.REFUTED:
            self._withdraw(item, event.trace_json, proof)
            self._prove_best(item)
        elif proof.verdict is ProofVerdict.UNDECIDED:
            item.unprovable = proof.message
        else:
            self._keep_proof(item, event.trace_json, proof)

    def _keep_finalists(self, item: WorkloadProgress) -> None:
        """Keep the fastest few candidates of a workload and forget the others."""
        shash = item.workload.shash
        own = [c for c in self.candidates.values() if c.workload == shash and c.stage not in _UNMEASURED]
        able = sorted((c for c in own if c.stage is not CandidateStage.OUT), key=lambda c: c.median_sec)[:_FINALISTS]
        for candidate in own:
            if candidate not in able:
                del self.candidates[shash, candidate.digest]
        self._finalists[shash] = able

    def _begin_run_off(self, event: ev.RunOffWanted) -> None:
        self._say("comparing the best candidates once more", Phase.CHOICE)
        finalists = self._finalists.get(event.workload, [])
        close = [c for c in finalists if c.median_sec <= _REACH * finalists[0].median_sec]
        self.checking[event.workload] = Checking(purpose=Purpose.RUN_OFF, waiting=deque(close))
        self._check_next(event.workload)

    def _run_off(self, item: WorkloadProgress, runners: list[Candidate]) -> None:
        """Time the runners beside the unscheduled program, unless that is far behind."""
        if not runners:
            return
        shash, evaluator = item.workload.shash, self.conditions.like_trials(CAREFUL_EVALUATOR)
        artifacts = [artifact_of(candidate) for candidate in runners]
        trials = [self._trial(candidate, evaluator) for candidate in runners]
        baseline = self.baselines.get(shash)
        is_sure = len(runners) == 1 and runners[0].is_static and not item.is_untuned_disturbed
        reach = _BASELINE_REACH_OF_STATIC if is_sure else _BASELINE_REACH
        if baseline is not None and item.untuned_sec <= reach * runners[0].median_sec:
            artifacts.append(baseline)
            trials.append(self._baseline_trial(shash, BASELINE, evaluator))
        if len(trials) == 1:  # nobody to run against
            return
        self._begin_measuring(Purpose.RUN_OFF, shash, artifacts, trials)


def _too_fast(candidate: Candidate, floor_sec: float) -> Proof:
    message = f"{time_text(candidate.median_sec)} is less than the device can: {time_text(floor_sec)} at the very least"
    return Proof(verdict=ProofVerdict.REFUTED, claimed_sec=candidate.median_sec, least_sec=floor_sec, message=message)
