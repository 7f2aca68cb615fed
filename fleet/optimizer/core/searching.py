"""Decides which workload is searched next, and follows proposals until they are built."""

from __future__ import annotations

from fleet.domain.measuring import Measurement
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.entries import Candidate, Stage
from fleet.optimizer.core.ledger import close
from fleet.optimizer.core.planning import forget_forecast, plan
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.core.recording import Recording
from fleet.optimizer.prioritizer.sentences import finish_sentence, sentence
from fleet.optimizer.prioritizer.values import Done, ProposedBatch

_LESSONS = 2_000
"""How many of the newest measured candidates the cost model learns from."""


class Searching(Recording):
    """Plans rounds of search."""

    def __init__(self, progress: JobProgress) -> None:
        super().__init__(progress)
        self._rounds = 0
        self._lessons_learnt = 0

    def _recall(self, event: ev.LessonsRecalled) -> None:
        self.workload(event.workload).lessons.extend(event.lessons)

    def _begin_search(self, event: ev.SearchBegun) -> None:
        for item in self.progress.workloads:
            item.judged_sec = item.current_sec

    def _end_search(self, reason: str) -> None:
        for item in self.progress.workloads:
            close(item, reason)

    def _begin_round(self, event: ev.RoundWanted) -> None:
        target_sec = self.conditions.target_sec
        if target_sec is not None and self.progress.total_sec(tuned=True) <= target_sec:
            self._end_search(f"the job's target of {target_sec * 1e3:g} ms is reached")
        self._close_those_with_enough()
        batch = self._next_batch(event.workload)
        shash = batch.workload if batch is not None else event.workload
        count = event.count or (batch.count if batch is not None else self.conditions.batch_size)
        count = min(count, self._trials_left())
        if shash is None or count < 1:
            return
        item = self.workload(shash)
        why = f": {sentence(batch.reason)}" if batch is not None else ""
        self.progress.bid = batch.reason.worth if batch is not None else self.progress.bid
        self._say(f"searching {item.workload.operator}{why}")
        lessons = [lesson for other in self.progress.workloads for lesson in other.lessons]
        if self.conditions.uses_model and len(lessons) > self._lessons_learnt:
            self._lessons_learnt = len(lessons)
            self._effects.append(ev.Learn(lessons[-_LESSONS:]))
        self._effects.append(
            ev.Propose(
                workload=item.workload.shash,
                count=count,
                seed=self.conditions.seed + self._rounds,
                records=tuple(item.records),
                known=frozenset(item.under_way | item.taken),
                replayed=tuple(item.replayed),
                seeds=item.seeds,
            )
        )
        if batch is not None:
            self.progress.decisions.append(batch)
        item.asked = count
        item.batches += 1
        item.forecasts.append(batch.expected_share if batch is not None else 0.0)
        self._rounds += 1

    def _begin_static(self, event: ev.StaticWanted) -> None:
        known = frozenset(self.workload(event.workload).under_way)
        self._effects.append(
            ev.Propose(workload=event.workload, count=1, seed=0, records=(), known=known, is_static=True)
        )

    def _trials_left(self) -> int:
        under_way = sum(len(item.under_way) + item.asked for item in self.progress.workloads)
        return self.progress.trials_total - self.progress.trials_done - under_way

    def _close_those_with_enough(self) -> None:
        for item in self.progress.workloads:
            had = item.trials_before + item.trials + len(item.under_way)
            if had >= self.conditions.enough:
                close(item, f"has had {had} trials; enough is {self.conditions.enough} (see --enough)")

    def _next_batch(self, workload: str | None) -> ProposedBatch | None:
        """Return the batch that is worth most, of a workload if one is named, and close what is finished."""
        planned = plan(self.progress.workloads, self.conditions, self._trials_left())
        for shash, finish in planned.finished.items():
            if finish.done is not Done.NO_TRIALS:  # of the job: the others' candidates may yet come to nothing
                close(self.workload(shash), finish_sentence(finish))
        wanted = (batch for batch in planned.batches if workload in (None, batch.workload))
        return next(wanted, None)

    def _propose(self, event: ev.Proposed) -> None:
        item = self.workload(event.workload)
        item.asked = 0 if not event.is_static else item.asked
        item.taken |= event.taken
        if not event.traces_by_digest:
            if not event.is_static:
                forget_forecast(item)
            if not event.is_static and not event.taken:
                close(item, "nothing new to try")
            return
        for digest, trace_json in event.traces_by_digest.items():
            self.candidates[event.workload, digest] = Candidate(
                workload=event.workload,
                trace_json=trace_json,
                digest=digest,
                is_static=event.is_static,
                features=event.features_by_digest.get(digest),
            )
        if not event.is_static:
            item.under_way.update(event.traces_by_digest)
        self._say(f"building {len(event.traces_by_digest)} candidates of {item.workload.operator}")
        self._effects.append(ev.Build(event.workload, event.traces_by_digest, frozenset(event.features_by_digest)))

    def _fail_search(self, event: ev.SearchFailed) -> None:
        """Close the workload of a search that crashed or never ended; the others go on."""
        item = self.workload(event.workload)
        item.asked = 0
        forget_forecast(item)
        item.closed_because = f"its search failed: {event.message}"
        self._notify(f"{item.workload.operator} gets no more trials: {item.closed_because}")

    def _fail_learning(self, event: ev.LearningFailed) -> None:
        self._notify(f"the cost model could not learn from the last batch: {event.message}")

    def _build(self, event: ev.Built) -> None:
        candidate = self.candidates[event.workload, event.digest]
        candidate.artifact, candidate.packings, candidate.stage = event.artifact, event.packings, Stage.BUILT
        candidate.features = candidate.features if event.features is None else event.features
        candidate.program = event.program

    def _fail_build(self, event: ev.BuildFailed) -> None:
        failed = Measurement(candidate_id=event.digest, error=event.kind, error_message=event.message)
        self._ask_to_store(0, event.workload, event.digest, failed)

    def _build_baseline(self, event: ev.BaselineBuilt) -> None:
        self.baselines[event.workload] = event.artifact
