"""Proposals of a job: selects the workload to search next, and tracks its candidates until they are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fleet.domain.measuring import Measurement
from fleet.domain.observation import Observation, no_features
from fleet.optimizer.core import events as ev
from fleet.optimizer.core.candidates import Backlog, CandidateStage
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.planning import forget_forecast, has_ahead, note_vain_batch, plan
from fleet.optimizer.core.progress import Phase
from fleet.optimizer.prioritizer.values import Done

if TYPE_CHECKING:
    from fleet.optimizer.core.job import Job
    from fleet.optimizer.core.kinds import Seat
    from fleet.optimizer.core.progress import WorkloadProgress
    from fleet.optimizer.core.results import Results
    from fleet.optimizer.prioritizer.values import Plan, ProposedBatch

_LEARNT_FROM = 2_000
"""Number of the newest measured candidates that the cost model learns from."""

_BATCHES_AHEAD = {True: 1, False: 3}
"""Batches that are searched after the next one, where device and builders share cores or do not: to look further ahead
costs device seconds in the first case, and saves them in the second (benchmarks/prioritizer)."""

_KEPT_FEATURES = 64
"""Number of a workload's newest candidates with features that predict the next ones."""


class Proposals:
    """Searches, backlogs, and candidates that are being built."""

    def __init__(self, job: Job, results: Results, seat: Seat) -> None:
        """Args: seat: share of the trials of a job with several kinds of boards."""
        self._job = job
        self._seat = seat
        self.is_held_back = False
        """The next batch waits for a more valuable one on another kind of boards."""

        self._results = results
        self._searches = 0
        self._learnt_from = 0
        """Observations at the last training."""

    def end_search(self, event: ev.EndWanted) -> None:
        """Close all open workloads and tell the user why; they may have forgotten the deadline."""
        if any(item.closing is None for item in self._job.progress.workloads):
            self._job.notify(News(topic=Topic.SEARCH_ENDED, detail=event.reason))
        for item in self._job.progress.workloads:
            item.close(News(topic=Topic.ENDED, detail=event.reason))

    def begin_round(self, event: ev.RoundWanted) -> None:
        """Claim the next batch; search first if the backlog of its workload is empty or too old."""
        self.is_held_back = False
        for batch in self._plan(event.now_sec):
            item = self._job.workload(batch.workload)
            if has_ahead(item, self._job.progress, self._job.conditions):
                self.is_held_back = self._seat.must_wait(batch, event.now_sec)
                if not self.is_held_back:
                    self._take(item, batch)
                return
            if not item.is_searched:
                self._search(item, batch)
                return

    def search_ahead(self, event: ev.AheadWanted) -> None:
        """Search for the most valuable workload with an empty backlog or one older than its newest results."""
        for batch in self._plan(event.now_sec):
            item = self._job.workload(batch.workload)
            if not item.is_searched and (not item.backlog.candidates or item.backlog.age(item.trials)):
                self._search(item, batch)
                return

    def _plan(self, now_sec: float) -> Sequence[ProposedBatch]:
        """Return the batches worth measuring next, the most valuable first, and close finished workloads."""
        self._close_those_with_enough()
        self._seat.top_up(self._job.conditions.batch_size, now_sec)
        left = self._trials_left()
        if left < 1:
            return ()
        planned = plan(self._job.progress, self._job.conditions, left, now_sec)
        self._job.progress.planned = planned.batches
        self._note_rest(planned)
        for shash, finish in planned.finished.items():
            # Not counted as trials of the job: the others' candidates may still be dropped. EndWanted handles a
            # deadline.
            if finish.done not in (Done.NO_TRIALS, Done.DEADLINE):
                self._job.workload(shash).close(News(topic=Topic.FINISHED, finish=finish))
        return planned.batches

    def _note_rest(self, planned: Plan) -> None:
        """Keep the expected gain of the rest, and tell the user if the search ends because of it."""
        progress = self._job.progress
        if progress.is_ended_early:
            return
        progress.rest = planned.rests.get(self._job.conditions.job_name)
        if all(one.done is not Done.LITTLE_LEFT for one in planned.finished.values()):
            return
        progress.is_ended_early = True
        count = progress.trials_total - self._trials_left()
        self._job.notify(News(topic=Topic.LITTLE_LEFT, count=count, limit=progress.trials_asked, rest=progress.rest))

    def _search(self, item: WorkloadProgress, batch: ProposedBatch) -> None:
        news = News(topic=Topic.SEARCHING, operator=item.workload.operator, reason=batch.reason)
        self._job.say(news, Phase.SEARCH)
        self._learn()
        self._job.emit(
            ev.Propose(
                workload=item.workload.shash,
                count=min(self._job.conditions.batch_size, self._trials_left()),
                seed=self._job.conditions.seed + self._searches,
                records=_without_old_features(item.records),
                known=item.asked | item.under_way | item.taken,
                replayed=tuple(item.replayed),
                seeds=item.seeds,
                ahead=self._how_far_ahead(item),
                shared_with=item.shared_with,
            )
        )
        item.is_searched = True
        item.search_began_at = item.trials
        self._searches += 1

    def _learn(self) -> None:
        """Fit the job's own trees to its observations, unless a model of all workloads knows better."""
        conditions = self._job.conditions
        if not conditions.uses_model or conditions.has_prior or self._job.progress.snapshot:
            return
        learnable = [one for item in self._job.progress.workloads for one in item.records if one.has_features]
        if len(learnable) > self._learnt_from:
            self._learnt_from = len(learnable)
            self._job.emit(ev.Learn(learnable[-_LEARNT_FROM:]))

    def _how_far_ahead(self, item: WorkloadProgress) -> int:
        """Return the number of candidates to search ahead: more with each batch, so that no search takes long."""
        most = _BATCHES_AHEAD[self._job.conditions.shares_cores] * self._job.conditions.batch_size
        return min(most, max(self._job.conditions.batch_size, len(item.records)))

    def find(self, event: ev.Found) -> None:
        """Replace the backlog of a workload; close it if there is nothing new."""
        item = self._job.workload(event.workload)
        item.is_searched = False
        self._job.progress.builders.searches += 1
        self._job.progress.builders.search_sec += event.builder_sec
        item.backlog = Backlog(candidates=event.proposals, made_at=item.search_began_at)
        known = item.asked | item.under_way | item.taken | self._results.measured(event.workload)
        item.backlog.drop(known)  # while the search ran
        if not event.proposals:
            item.close(News(topic=Topic.EXHAUSTED))

    def _take(self, item: WorkloadProgress, batch: ProposedBatch) -> None:
        taken = item.backlog.take(min(batch.count, self._trials_left()))
        operator, reason = item.workload.operator, batch.reason
        news = News(topic=Topic.BUILDING, count=len(taken), operator=operator, reason=reason)
        self._job.say(news, Phase.SEARCH)
        self._job.emit(ev.Claim(item.workload.shash, taken, batch.reason.worth))
        self._job.progress.decisions.append(batch)
        item.asked = frozenset(one.digest for one in taken)
        item.batches += 1
        item.forecasts.append(batch.expected_share)

    def begin_static(self, event: ev.StaticWanted) -> None:
        """Request the static schedule of a workload."""
        known = frozenset(self._job.workload(event.workload).under_way)
        self._job.emit(ev.Propose(workload=event.workload, count=1, seed=0, records=(), known=known, is_static=True))

    @property
    def has_trials_left(self) -> bool:
        """True if there are unplanned trials, and a workload that may have them."""
        return self._trials_left() > 0 and any(item.closing is None for item in self._job.progress.workloads)

    def _trials_left(self) -> int:
        return self._seat.left

    def _close_those_with_enough(self) -> None:
        for item in self._job.progress.workloads:
            had = item.trials_before + item.trials + len(item.under_way)
            if had >= self._job.conditions.enough:
                item.close(News(topic=Topic.ENOUGH, count=had, limit=self._job.conditions.enough))

    def propose(self, event: ev.Proposed) -> None:
        """Build candidates that are this job's to measure."""
        item = self._job.workload(event.workload)
        is_announced = bool(item.asked) and not event.is_static  # with its reason
        item.asked = frozenset() if not event.is_static else item.asked
        item.taken |= event.taken
        if not event.is_static:
            item.shared_with = event.shared_with
        # Static schedules are not claimed, and claims would leave out those that crashed a device.
        wanted = [one for one in event.proposals if not (event.is_static and one.digest in item.poison)]
        if not wanted:
            if not event.is_static:
                forget_forecast(item)
            return
        may_be_built = {one.digest for one in wanted}
        for one in wanted:
            self._job.candidates[event.workload, one.digest] = replace(
                one,
                workload=event.workload,
                may_be_built=may_be_built,
                shared_with=event.shared_with,
                is_static=event.is_static,
            )
        if not event.is_static:
            item.under_way |= may_be_built
        if not is_announced:
            self._job.say(News(topic=Topic.BUILDING, count=len(wanted), operator=item.workload.operator))
        self._job.emit(ev.Build(event.workload, tuple(wanted), event.shared_with))

    def fail_search(self, event: ev.SearchFailed) -> None:
        """Close the workload of a search that crashed or timed out; the others go on."""
        item = self._job.workload(event.workload)
        item.is_searched = False
        item.closing = News(topic=Topic.SEARCH_FAILED, detail=event.message)
        self._job.notify(News(topic=Topic.WORKLOAD_CLOSED, operator=item.workload.operator, closing=item.closing))

    def note_learning(self, event: ev.Learnt) -> None:
        """Count the processor time of a training."""
        self._job.progress.builders.search_sec += event.builder_sec

    def fail_learning(self, event: ev.LearningFailed) -> None:
        """Tell the user that the cost model stays as it was."""
        self._job.notify(News(topic=Topic.NOT_LEARNT, detail=event.message))

    def build(self, event: ev.Built) -> None:
        """Record that a candidate is built."""
        candidate = self._job.candidates[event.workload, event.digest]
        candidate.build, candidate.stage = event.build, CandidateStage.BUILT
        candidate.program = event.build.program
        candidate.features = candidate.features if event.build.features is None else event.build.features
        self._job.progress.builders.builds += 1
        self._job.progress.builders.build_sec += event.builder_sec

    def fail_build(self, event: ev.BuildFailed) -> None:
        """Record that a candidate could not be built."""
        candidate = self._job.candidates[event.workload, event.digest]
        candidate.may_be_built.discard(event.digest)
        if not candidate.may_be_built and not candidate.is_static:  # so their batch never ends
            note_vain_batch(self._job.workload(event.workload))
        failed = Measurement(candidate_id=event.digest, error=event.kind, error_message=event.message)
        self._results.keep(event.workload, event.digest, failed)


def _without_old_features(records: Sequence[Observation]) -> tuple[Observation, ...]:
    """Return records for a search: only the newest keep their features, to limit the bytes sent to the pool."""
    learnable = [record for record in records if record.has_features]
    old = {record.trace_json for record in learnable[:-_KEPT_FEATURES]}
    return tuple(replace(record, features=no_features()) if record.trace_json in old else record for record in records)
