"""Decides which workload is searched next, and follows proposals until they are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.base.quantities import count_text
from fleet.cost_model.observation import NO_FEATURES, Observation
from fleet.domain.measuring import Measurement
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.backlog import Backlog
from fleet.optimizer.core.entries import Candidate, CandidateStage
from fleet.optimizer.core.ledger import close
from fleet.optimizer.core.planning import (
    floor_sec,
    forget_forecast,
    has_ahead,
    is_alone,
    least_sec,
    note_vain_batch,
    plan,
    searches_beside_builds,
)
from fleet.optimizer.core.progress import JobProgress, Phase, WorkloadProgress
from fleet.optimizer.core.recording import Recording
from fleet.optimizer.prioritizer.sentences import finish_sentence, sentence
from fleet.optimizer.prioritizer.values import Done, ProposedBatch

_LEARNT_FROM = 2_000
"""How many of the newest measured candidates the cost model learns from."""

_BATCHES_AHEAD = {True: 1, False: 3}
"""Batches that are searched after the next one, where device and builders share cores or do not: to look further ahead
costs device seconds in the first case, and saves them in the second (benchmarks/prioritizer)."""

_KEPT_FEATURES = 64
"""Number of the newest candidates of a workload whose features predict the next ones."""


class Searching(Recording):
    """Plans rounds of search."""

    def __init__(self, progress: JobProgress) -> None:
        super().__init__(progress)
        self._searches = 0
        self._learnt_from = 0

    def _know_limits(self, event: ev.LimitsKnown) -> None:
        for item in self.progress.workloads:
            item.least_sec = least_sec(item.workload, event.roofline)
            item.floor_sec = floor_sec(item.workload, event.roofline)

    def _recall(self, event: ev.FeaturesRecalled) -> None:
        item, found = self.workload(event.workload), {one.trace_json: one for one in event.observations}
        item.records = [found.get(record.trace_json, record) for record in item.records]

    def _begin_search(self, event: ev.SearchBegun) -> None:
        for item in self.progress.workloads:
            item.judged_sec = item.current_sec

    def _end_search(self, event: ev.EndWanted) -> None:
        """Close what is open, and say so: who set an end may have forgotten it."""
        if any(not item.closed_because for item in self.progress.workloads):
            self._notify(f"{event.reason}: the search ends; the best schedules so far are compared and stored")
        for item in self.progress.workloads:
            close(item, event.reason)

    def _begin_round(self, event: ev.RoundWanted) -> None:
        """Claim the next batch. Where nothing of it is ahead, or what is there is too old, search first."""
        for batch in self._plan(event.now_sec):
            item = self.workload(batch.workload)
            if has_ahead(item, self.progress, self.conditions):
                self._take(item, batch)
                return
            if not item.is_searched:
                self._search(item, batch)
                return

    def _search_ahead(self, event: ev.AheadWanted) -> None:
        """Search for whoever comes first of those that know less than they could."""
        for batch in self._plan(event.now_sec):
            item = self.workload(batch.workload)
            if not item.is_searched and (not item.backlog.candidates or item.backlog.age(item.trials)):
                self._search(item, batch)
                return

    def _plan(self, now_sec: float) -> Sequence[ProposedBatch]:
        """Return what is worth measuring next, the most valuable first, and close what is finished."""
        self._close_those_with_enough()
        left = self._trials_left()
        if left < 1:
            return ()
        planned = plan(self.progress, self.conditions, left, now_sec)
        for shash, finish in planned.finished.items():
            # No trials of the job: the others' candidates may yet come to nothing. Of a deadline EndWanted says which.
            if finish.done not in (Done.NO_TRIALS, Done.DEADLINE):
                close(self.workload(shash), finish_sentence(finish))
        return planned.batches

    def _search(self, item: WorkloadProgress, batch: ProposedBatch) -> None:
        self._say(f"searching {item.workload.operator}: {sentence(batch.reason)}", Phase.SEARCH)
        learnable = [one for other in self.progress.workloads for one in other.records if one.has_features]
        if self.conditions.uses_model and len(learnable) > self._learnt_from:
            self._learnt_from = len(learnable)
            self._effects.append(ev.Learn(learnable[-_LEARNT_FROM:]))
        self._effects.append(
            ev.Propose(
                workload=item.workload.shash,
                count=min(self.conditions.batch_size, self._trials_left()),
                seed=self.conditions.seed + self._searches,
                records=_without_old_features(item.records),
                known=frozenset(item.under_way | item.taken),
                replayed=tuple(item.replayed),
                seeds=item.seeds,
                ahead=self._how_far_ahead(item),
            )
        )
        item.is_searched = True
        item.search_began_at = item.trials
        self._searches += 1

    def _how_far_ahead(self, item: WorkloadProgress) -> int:
        """Return how many candidates are searched for later: more with each batch, so that no search takes long."""
        most = _BATCHES_AHEAD[self.conditions.shares_cores] * self.conditions.batch_size
        return min(most, max(self.conditions.batch_size, len(item.records)))

    def _find(self, event: ev.Found) -> None:
        item = self.workload(event.workload)
        item.is_searched = False
        self.progress.builders.searches += 1
        self.progress.builders.search_sec += event.builder_sec
        item.backlog = Backlog(candidates=event.candidates, made_at=item.search_began_at)
        item.backlog.drop(item.under_way | item.taken | self._measured(item))  # while it was searched
        if not event.candidates:
            close(item, "no new candidates are left to try")

    def _measured(self, item: WorkloadProgress) -> set[str]:
        return {digest for workload, digest in self.counted if workload == item.workload.shash}

    def _take(self, item: WorkloadProgress, batch: ProposedBatch) -> None:
        taken = item.backlog.take(min(batch.count, self._trials_left()))
        self._say(
            f"building {count_text(len(taken), 'candidate')} of {item.workload.operator}: {sentence(batch.reason)}",
            Phase.SEARCH,
        )
        self._effects.append(
            ev.Claim(
                item.workload.shash,
                {one.digest: one.trace_json for one in taken},
                {one.digest: one.features for one in taken if one.features is not None},
            )
        )
        self.progress.bid = batch.reason.worth
        self.progress.decisions.append(batch)
        item.asked = len(taken)
        item.batches += 1
        item.forecasts.append(batch.expected_share)

    def _begin_static(self, event: ev.StaticWanted) -> None:
        known = frozenset(self.workload(event.workload).under_way)
        self._effects.append(
            ev.Propose(workload=event.workload, count=1, seed=0, records=(), known=known, is_static=True)
        )

    @property
    def is_alone(self) -> bool:
        """Whether there is one workload left to tune."""
        return is_alone(self.progress)

    @property
    def searches_beside_builds(self) -> bool:
        """Whether a search goes on while a batch is built."""
        return searches_beside_builds(self.progress, self.conditions)

    @property
    def has_trials_left(self) -> bool:
        """Whether there are trials that nothing is planned for yet, and a workload that may have them."""
        return self._trials_left() > 0 and any(not item.closed_because for item in self.progress.workloads)

    def _trials_left(self) -> int:
        under_way = sum(len(item.under_way) + item.asked for item in self.progress.workloads)
        return self.progress.trials_total - self.progress.trials_done - under_way

    def _close_those_with_enough(self) -> None:
        for item in self.progress.workloads:
            had = item.trials_before + item.trials + len(item.under_way)
            if had >= self.conditions.enough:
                close(item, f"the library has {had} trials of it; {self.conditions.enough} are enough (--enough)")

    def _propose(self, event: ev.Proposed) -> None:
        item = self.workload(event.workload)
        is_announced = item.asked > 0 and not event.is_static  # with the reason for it
        item.asked = 0 if not event.is_static else item.asked
        item.taken |= event.taken
        traces_by_digest = event.traces_by_digest
        if event.is_static:  # nobody claims it, which would leave out what broke a device
            traces_by_digest = {
                digest: trace for digest, trace in traces_by_digest.items() if digest not in item.poison
            }
        if not traces_by_digest:
            if not event.is_static:
                forget_forecast(item)
            return
        may_be_built = set(traces_by_digest)
        for digest, trace_json in traces_by_digest.items():
            self.candidates[event.workload, digest] = Candidate(
                workload=event.workload,
                trace_json=trace_json,
                digest=digest,
                may_be_built=may_be_built,
                is_static=event.is_static,
                features=event.features_by_digest.get(digest),
            )
        if not event.is_static:
            item.under_way.update(traces_by_digest)
        if not is_announced:
            self._say(f"building {count_text(len(traces_by_digest), 'candidate')} of {item.workload.operator}")
        self._effects.append(ev.Build(event.workload, traces_by_digest, frozenset(event.features_by_digest)))

    def _fail_search(self, event: ev.SearchFailed) -> None:
        """Close the workload of a search that crashed or never ended; the others go on."""
        item = self.workload(event.workload)
        item.is_searched = False
        item.closed_because = f"its search failed: {event.message}"
        self._notify(f"{item.workload.operator} gets no more trials: {item.closed_because}")

    def _learn(self, event: ev.Learnt) -> None:
        self.progress.builders.search_sec += event.builder_sec

    def _fail_learning(self, event: ev.LearningFailed) -> None:
        self._notify(f"the cost model could not learn from the last batch: {event.message}")

    def _build(self, event: ev.Built) -> None:
        candidate = self.candidates[event.workload, event.digest]
        candidate.artifact, candidate.packings, candidate.stage = event.artifact, event.packings, CandidateStage.BUILT
        candidate.features = candidate.features if event.features is None else event.features
        candidate.program = event.program
        self.progress.builders.builds += 1
        self.progress.builders.build_sec += event.builder_sec

    def _fail_build(self, event: ev.BuildFailed) -> None:
        candidate = self.candidates[event.workload, event.digest]
        candidate.may_be_built.discard(event.digest)
        if not candidate.may_be_built and not candidate.is_static:  # so nobody will say that their batch is over
            note_vain_batch(self.workload(event.workload))
        failed = Measurement(candidate_id=event.digest, error=event.kind, error_message=event.message)
        self._ask_to_store(0, event.workload, event.digest, failed)

    def _build_baseline(self, event: ev.BaselineBuilt) -> None:
        self.baselines[event.workload] = event.artifact


def _without_old_features(records: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return records for a search: only the newest go through the pool with their features."""
    learnable = [record for record in records if record.has_features]
    old = {record.trace_json for record in learnable[:-_KEPT_FEATURES]}
    return tuple(replace(record, features=NO_FEATURES) if record.trace_json in old else record for record in records)
