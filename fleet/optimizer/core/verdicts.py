"""Verdicts of a job: selects candidates to check, the best right one, and the times to prove."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleet.domain.measuring import ErrorKind
from fleet.domain.proving import ProofVerdict, too_fast
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Candidate, CandidateStage
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.planning import keep_outcome
from fleet.optimizer.core.progress import Phase

if TYPE_CHECKING:
    from fleet.domain.proving import Proof
    from fleet.optimizer.core.job import Job
    from fleet.optimizer.core.measurements import Batch, Measurements
    from fleet.optimizer.core.progress import WorkloadProgress

_FINALISTS = 3
"""Candidates of each workload that are kept for the run-off."""

_REACH = 1.3
"""Only candidates within this factor of the best time take part."""

_BASELINE_REACH = 2.0
"""The unscheduled program does not take part if it was slower than the best by this factor."""

_BASELINE_REACH_OF_STATIC = 1.3
"""The same for a lone static schedule: its time is recent, and not the luckiest of many."""

_NEGLIGIBLE = 0.005
"""A lone static schedule has no run-off if its workload takes a smaller share of the model's time. The calm times of
both programs are known and close, so a wrong choice would cost a fraction of that."""

_CHECKED_PER_BATCH = 3
"""Number of a batch's candidates that are compared before giving up on finding a right one."""

_UNMEASURED = (CandidateStage.PROPOSED, CandidateStage.BUILT)


@dataclass(slots=True, kw_only=True)
class Checking:
    """Candidates of one workload with numbers to compare, in this order."""

    purpose: ev.Purpose
    waiting: deque[Candidate]
    right: list[Candidate] = field(default_factory=list)


class Verdicts:
    """Checks under way, the finalists of each workload, and the run-off between them."""

    def __init__(self, job: Job, measurements: Measurements) -> None:
        self._job = job
        self._measurements = measurements
        self._checking: dict[str, Checking] = {}
        """Checks in progress, by workload."""

        self._finalists: dict[str, list[Candidate]] = {}
        """Finalists by workload, the fastest first."""

    def judge_batch(self, batch: Batch) -> None:
        """Check the fastest candidates of a batch that is over."""
        self._release_unmeasured(batch)
        wanted = [self._job.candidates.get((batch.workload, trial.candidate_id)) for trial in batch.all_trials]
        measured = [candidate for candidate in wanted if candidate is not None]
        timed = sorted((c for c in measured if math.isfinite(c.median_sec)), key=lambda c: c.median_sec)
        self._begin_checks(batch.workload, ev.Purpose.SEARCH, timed[:_CHECKED_PER_BATCH])

    def begin_run_off(self, event: ev.RunOffWanted) -> None:
        """Time the best few candidates of a workload once more."""
        self._job.say(News(topic=Topic.RUN_OFF), Phase.CHOICE)
        finalists = self._finalists.get(event.workload, [])
        close = [c for c in finalists if c.median_sec <= _REACH * finalists[0].median_sec]
        self._begin_checks(event.workload, ev.Purpose.RUN_OFF, close)

    def make_reference(self, event: ev.ReferenceMade) -> None:
        """Record how much a check of a workload's outputs proves."""
        self._job.workload(event.workload).weakness = event.weakness

    def fail_reference(self, event: ev.ReferenceFailed) -> None:
        """Close a workload whose candidates cannot be checked."""
        item, closing = self._job.workload(event.workload), News(topic=Topic.NOT_CHECKED, detail=event.message)
        item.close(closing)
        self._job.notify(News(topic=Topic.WORKLOAD_CLOSED, operator=item.workload.operator, closing=closing))

    def check(self, event: ev.Checked) -> None:
        """Apply the result of a check, and go on with the next candidate."""
        item, checking = self._job.workload(event.workload), self._checking[event.workload]
        candidate = checking.waiting.popleft()
        if event.verdict is ev.Verdict.RIGHT:
            candidate.stage = CandidateStage.CHECKED
            if candidate.record_id is not None:
                self._job.emit(ev.MarkChecked(candidate.record_id))
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

    def prove_best(self, item: WorkloadProgress) -> None:
        """Request a proof of the best schedule if it lacks one: an earlier job found it, or no proof has succeeded."""
        if item.best_trace is None or not item.needs_proof or item.unprovable:
            return
        self._job.say(News(topic=Topic.PROVING))
        shash = item.workload.shash
        builds = (one.build for one in self._finalists.get(shash, ()) if one.trace_json == item.best_trace)
        self._job.emit(
            ev.Prove(
                workload=shash,
                trace_json=item.best_trace,
                claimed_sec=item.best_sec,
                build=next(filter(None, builds), None),
            )
        )

    def prove(self, event: ev.Proven) -> None:
        """Apply a proof; after a refutation the next best schedule is proven."""
        item, trace_json, proof = self._job.workload(event.wanted.workload), event.wanted.trace_json, event.proof
        if proof.verdict is ProofVerdict.REFUTED:
            self._withdraw(item, trace_json, proof)
            self.prove_best(item)
        elif proof.verdict is ProofVerdict.UNDECIDED:
            item.unprovable = proof.message
        else:
            self._keep_proof(item, trace_json, proof)

    def _release_unmeasured(self, batch: Batch) -> None:
        """Release candidates that were not sent: nothing is known of them, so they may be proposed again."""
        for trial in batch.all_trials:
            key = batch.workload, trial.candidate_id
            if key in self._job.candidates and self._job.candidates[key].stage is CandidateStage.BUILT:
                self._job.workload(batch.workload).under_way.discard(trial.candidate_id)
                del self._job.candidates[key]

    def _begin_checks(self, workload: str, purpose: ev.Purpose, candidates: list[Candidate]) -> None:
        self._checking[workload] = Checking(purpose=purpose, waiting=deque(candidates))
        self._check_next(workload)

    def _check_next(self, workload: str) -> None:
        """Request the next comparison. During a search, one candidate that is right and the best so far is enough."""
        checking, item = self._checking[workload], self._job.workload(workload)
        while checking.waiting:
            candidate = checking.waiting[0]
            if checking.purpose is ev.Purpose.SEARCH and candidate.median_sec >= item.best_sec:
                break
            if candidate.median_sec < item.floor_sec:
                checking.waiting.popleft()
                candidate.stage = CandidateStage.OUT
                self._refuse(item, candidate, too_fast(candidate.median_sec, item.floor_sec))
                continue
            if candidate.stage is not CandidateStage.CHECKED:
                claimed_sec = 0.0 if candidate.is_static else candidate.median_sec
                self._job.emit(ev.CheckOutputs(candidate, claimed_sec))
                return
            checking.right.append(checking.waiting.popleft())
        del self._checking[workload]
        if checking.purpose is ev.Purpose.SEARCH:
            self._keep_finalists(item)
            keep_outcome(item)
        else:
            self._run_off(item, checking.right)

    def _keep_finalists(self, item: WorkloadProgress) -> None:
        """Keep the fastest few candidates of a workload and forget the others."""
        shash = item.workload.shash
        own = [c for c in self._job.candidates.values() if c.workload == shash and c.stage not in _UNMEASURED]
        able = sorted((c for c in own if c.stage is not CandidateStage.OUT), key=lambda c: c.median_sec)[:_FINALISTS]
        for candidate in own:
            if candidate not in able:
                del self._job.candidates[shash, candidate.digest]
        self._finalists[shash] = able

    def _run_off(self, item: WorkloadProgress, runners: list[Candidate]) -> None:
        """Time the finalists beside the unscheduled program, unless that is far slower."""
        if not runners:
            return
        baseline = self._job.baselines.get(item.workload.shash)
        is_sure = len(runners) == 1 and runners[0].is_static and not item.is_untuned_disturbed
        reach = _BASELINE_REACH_OF_STATIC if is_sure else _BASELINE_REACH
        if item.untuned_sec > reach * runners[0].median_sec or (is_sure and self._is_negligible(item)):
            baseline = None
        if len(runners) > 1 or baseline is not None:
            self._measurements.begin_run_off(item, runners, baseline)

    def _is_negligible(self, item: WorkloadProgress) -> bool:
        """Tell whether a workload takes so small a share of the model that its schedule does not matter."""
        progress = self._job.progress
        return item.workload.weight * item.current_sec < _NEGLIGIBLE * progress.total_sec(tuned=True)

    def _keep_proof(self, item: WorkloadProgress, trace_json: str, proof: Proof) -> None:
        """Record a proof that does not refute the time."""
        if proof.is_proven:
            item.proven[trace_json] = proof.least_sec
            self._job.emit(ev.KeepProof(item.workload.shash, trace_json, proof))
        elif proof.verdict is ProofVerdict.IMPOSSIBLE:
            item.unprovable = proof.message

    def _reject(self, item: WorkloadProgress, candidate: Candidate, fault: str) -> None:
        """Record a candidate as wrong, and forget its time, so that the search does not build on it."""
        if candidate.record_id is not None:
            self._job.emit(ev.MarkWrong(candidate.record_id, fault))
        item.errors[ErrorKind.WRONG_OUTPUT] += 1
        item.right.pop(candidate.trace_json, None)
        item.retime(candidate.trace_json, math.inf)
        self._job.notify(News(topic=Topic.WRONG_OUTPUT, operator=item.workload.operator, detail=fault))

    def _refuse(self, item: WorkloadProgress, candidate: Candidate, proof: Proof) -> None:
        """Record that a candidate's claimed time is refuted, and forget that time."""
        item.errors[ErrorKind.TIME_NOT_PROVEN] += 1
        item.retime(candidate.trace_json, math.inf)
        self._withdraw(item, candidate.trace_json, proof)

    def _withdraw(self, item: WorkloadProgress, trace_json: str, proof: Proof) -> None:
        item.right.pop(trace_json, None)
        item.proven.pop(trace_json, None)
        self._job.emit(ev.KeepProof(item.workload.shash, trace_json, proof))
        self._job.notify(News(topic=Topic.NOT_PROVEN, operator=item.workload.operator, proof=proof))
