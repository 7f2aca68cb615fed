"""The tuning loop: propose, build, measure, check, learn, over all workloads of a job.

Two tasks joined by a queue of one batch. Where the device is on another machine, the next batch is made while the last
one is measured. Where builds and measurements share cores they take turns anyway, so the next batch waits for the
results of the last and is the better for it.

A record is in the library before anything else happens to its candidate; a best time counts once the candidate's
numbers have been compared with the unscheduled program's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from fleet.artifacts import Artifact
from fleet.errors import BuildError, InvalidRequest
from fleet.library import Library
from fleet.library.records import NO_VERDICT
from fleet.measuring import ErrorKind, Evaluator, Measurement, Trial
from fleet.optimizer.build_task import build_candidate
from fleet.optimizer.candidates import Candidate, Conditions, Pool
from fleet.optimizer.checker import Checker
from fleet.optimizer.learn import LearnRecord, learn
from fleet.optimizer.prioritizer import GradientPrioritizer, Prioritizer
from fleet.optimizer.progress import JobProgress, WorkloadProgress
from fleet.optimizer.propose import ProposeTask, SearchRecord, propose
from fleet.optimizer.recorder import Recorder
from fleet.optimizer.repeats import Repeats
from fleet.optimizer.run_off import RunOff
from fleet.optimizer.seat import Seat
from fleet.optimizer.turns import Turns

T = TypeVar("T")
Batch = tuple[WorkloadProgress, list[Candidate]]

_UNTUNED = Evaluator(number=1, repeat=3, min_repeat_ms=5)
"""For unscheduled programs: slow ones run a few times, no more."""

_UNTUNED_TIMEOUT_SEC = 60.0
_SEARCH_TIMEOUT_SEC = 120.0

_CHECKED_PER_BATCH = 3
"""Candidates whose numbers are compared before a batch without a right one is given up."""

_GIVE_UP = 2.0
"""A candidate this many times slower than the best stops after one repeat."""

_LESSONS = 2_000
"""Newest measured candidates that the cost model learns from."""


class Pipeline:
    """Runs the loop for one job."""

    def __init__(
        self,
        *,
        progress: JobProgress,
        conditions: Conditions,
        seat: Seat,
        pool: Pool,
        library: Library,
        turns: Turns,
        prioritizer: Prioritizer | None = None,
    ) -> None:
        self._progress = progress
        self._conditions = conditions
        self._pool = pool
        self._turns = turns
        self._prioritizer = prioritizer or GradientPrioritizer()
        self._recorder = Recorder(library, conditions, progress)
        self._checker = Checker(progress=progress, conditions=conditions, seat=seat, pool=pool, recorder=self._recorder)
        self._repeats = Repeats(seat, progress)
        self._run_off = RunOff(
            conditions=conditions, repeats=self._repeats, checker=self._checker, recorder=self._recorder
        )
        self._snapshot: bytes | None = None
        self._lessons_learnt = 0
        self._rounds = 0

    async def try_first(self, item: WorkloadProgress, count: int) -> None:
        """Measure a few candidates of one workload at once, so that whoever waits sees soon that everything works."""
        batch = await self._make_batch(item, count)
        await self._finish_batch(item, batch)

    async def measure_untuned(self, items: Sequence[WorkloadProgress]) -> None:
        """Build and time the unscheduled program of each workload that has no such record yet."""
        missing = {item.workload.shash: item for item in items if not math.isfinite(item.untuned_sec)}
        if not missing:
            return
        self._progress.say(f"building {len(missing)} unscheduled programs")
        async with self._turns.building():
            artifacts = await self._checker.build_references(list(missing.values()))
        self._progress.say(f"timing {len(missing)} unscheduled programs")
        trials = [
            Trial(
                candidate_id=shash,
                artifact_digest=artifact.digest,
                args=item.workload.args,
                evaluator=self._conditions.like_trials(_UNTUNED),
                timeout_sec=max(_UNTUNED_TIMEOUT_SEC, self._conditions.trial_timeout_sec),
            )
            for (shash, item), artifact in zip(missing.items(), artifacts, strict=True)
        ]
        async with self._turns.measuring():
            undecided = await self._time_untuned(missing, artifacts, trials)
            # The device went away under these, which is hardly the fault of a program that nobody has scheduled.
            for trial in await self._time_untuned(missing, artifacts, undecided):
                missing[trial.candidate_id].closed_because = "its unscheduled program could not be timed"

    async def _time_untuned(
        self, items: Mapping[str, WorkloadProgress], artifacts: Sequence[Artifact], trials: Sequence[Trial]
    ) -> list[Trial]:
        """Time unscheduled programs and return the trials that say nothing about theirs."""
        undecided = []
        by_id = {trial.candidate_id: trial for trial in trials}
        async with aclosing(self._repeats.measure(artifacts, trials)) as measurements:
            async for measurement in measurements:
                await self._book_untuned(items[measurement.candidate_id], measurement)
                if measurement.error in NO_VERDICT and not math.isfinite(items[measurement.candidate_id].untuned_sec):
                    undecided.append(by_id[measurement.candidate_id])
        return undecided

    async def run(self, total: int) -> None:
        """Spend up to `total` trials, then compare the best few of each workload once more."""
        queue: asyncio.Queue[Batch | None] = asyncio.Queue(maxsize=1)
        for item in self._progress.workloads:
            item.best_after_batch.insert(0, item.untuned_sec)
            if len(item.best_after_batch) == 1 and math.isfinite(item.best_sec):  # found by an earlier job
                item.best_after_batch.append(item.current_sec)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._produce(queue, total), name="produce")
                group.create_task(self._consume(queue), name="consume")
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        self._progress.say("comparing the best candidates once more")
        async with self._turns.measuring():
            for item in self._progress.workloads:
                await self._run_off.hold(item)

    async def _produce(self, queue: asyncio.Queue[Batch | None], total: int) -> None:
        planned = self._progress.trials_done
        while planned < total:
            self._close_what_has_had_enough()
            index = self._prioritizer.choose(self._progress.standings(self._conditions.batch_size))
            if index is None:
                break
            item = self._progress.workloads[index]
            batch = await self._make_batch(item, min(self._conditions.batch_size, total - planned))
            if not batch:
                item.closed_because = item.closed_because or "nothing new to try"
                continue
            planned += len(batch)
            await queue.put((item, batch))
            if self._turns.shares_cores:
                await queue.join()
        await queue.put(None)

    async def _consume(self, queue: asyncio.Queue[Batch | None]) -> None:
        while (entry := await queue.get()) is not None:
            await self._finish_batch(*entry)
            queue.task_done()

    async def _finish_batch(self, item: WorkloadProgress, batch: list[Candidate]) -> None:
        async with self._turns.measuring():
            await self._measure(item, batch)
            await self._check(item, batch)
        self._run_off.enter(item, batch)
        item.best_after_batch.append(item.current_sec)

    def _close_what_has_had_enough(self) -> None:
        for item in self._progress.workloads:
            had = item.trials_before + item.trials + len(item.under_way)
            if not item.closed_because and had >= self._conditions.enough:
                item.closed_because = f"has had {had} trials; enough is {self._conditions.enough} (see --enough)"

    async def _make_batch(self, item: WorkloadProgress, count: int) -> list[Candidate]:
        self._progress.say(f"searching {item.workload.name}")
        async with self._turns.building():
            await self._learn()
            task = ProposeTask(
                mod_json=item.workload.mod_json,
                target_json=self._conditions.target_json,
                records=tuple(item.records),
                model=self._snapshot,
                count=count,
                seed=self._conditions.seed + self._rounds,
                known=frozenset(item.under_way),
                threads=self._conditions.search_threads,
            )
            self._rounds += 1
            try:
                proposals = await self._search(propose, task)
            except BuildError as error:
                # A search that crashes or never ends costs its own workload, not the others.
                item.closed_because = f"its search failed: {error}"
                self._progress.notice(f"{item.workload.name} gets no more trials: {item.closed_because}")
                return []
            batch = [Candidate(trace_json=proposal.trace_json, digest=proposal.digest) for proposal in proposals]
            item.under_way.update(candidate.digest for candidate in batch)
            self._progress.say(f"building {len(batch)} candidates of {item.workload.name}")
            await asyncio.gather(*(self._build(item, candidate) for candidate in batch))
        return batch

    async def _learn(self) -> None:
        lessons = [lesson for item in self._progress.workloads for lesson in item.lessons]
        if len(lessons) > self._lessons_learnt:
            self._lessons_learnt = len(lessons)
            try:
                self._snapshot = await self._search(learn, lessons[-_LESSONS:])
            except BuildError as error:
                self._progress.notice(f"the cost model could not learn from the last batch: {error}")

    async def _search(self, fn: Callable[..., T], argument: object) -> T:
        return await asyncio.wrap_future(self._pool.submit_within(_SEARCH_TIMEOUT_SEC, fn, argument))

    async def _build(self, item: WorkloadProgress, candidate: Candidate) -> None:
        task = self._conditions.build_task(item, candidate.trace_json)
        try:
            candidate.built = await asyncio.wrap_future(self._pool.submit(build_candidate, task))
        except (BuildError, InvalidRequest) as error:
            is_late = isinstance(error, BuildError) and error.kind == "BUILD_TIMEOUT"
            kind = ErrorKind.BUILD_TIMEOUT if is_late else ErrorKind.BUILD_FAILED
            candidate.measurement = Measurement(candidate_id=candidate.digest, error=kind, error_message=str(error))

    async def _measure(self, item: WorkloadProgress, batch: list[Candidate]) -> None:
        for candidate in batch:
            if candidate.measurement is not None:
                await self._book(item, candidate, candidate.measurement)
        self._progress.say(f"measuring {item.workload.name}")
        evaluator = self._conditions.evaluator
        if math.isfinite(item.current_sec):
            evaluator = replace(evaluator, give_up_above_sec=_GIVE_UP * item.current_sec)
        built = {candidate.digest: candidate for candidate in batch if candidate.built is not None}
        trials = [
            Trial(
                candidate_id=digest,
                artifact_digest=candidate.artifact.digest,
                args=item.workload.args,
                evaluator=evaluator,
                timeout_sec=self._conditions.trial_timeout_sec,
            )
            for digest, candidate in built.items()
        ]
        started = time.monotonic()
        artifacts = [candidate.artifact for candidate in built.values()]
        async with aclosing(self._repeats.measure(artifacts, trials)) as measurements:
            async for measurement in measurements:
                await self._book(item, built[measurement.candidate_id], measurement)
        item.device_sec += time.monotonic() - started

    async def _book(self, item: WorkloadProgress, candidate: Candidate, measurement: Measurement) -> None:
        """Store one result, then count it. A second one of a candidate replaces the first, which was disturbed."""
        former, is_verdict = candidate.measurement, measurement.error not in NO_VERDICT
        is_again = candidate.record is not None
        record = await self._recorder.store(item, measurement, candidate=candidate)
        if is_again and not is_verdict:
            return
        candidate.measurement, candidate.record = measurement, record
        if is_again:
            self._retime(item, candidate, measurement, had_failed=former is None or former.error is not None)
            return
        item.trials += 1
        item.under_way.discard(candidate.digest)
        if measurement.error is not None:
            item.errors[measurement.error] += 1
        elif self._progress.first_trial_sec is None:
            self._progress.first_trial_sec = time.monotonic() - self._conditions.started_at
        item.records.append(SearchRecord(trace_json=candidate.trace_json, run_sec=measurement.median_sec))
        features = candidate.built.features if candidate.built is not None else None
        if features is not None:
            lesson = LearnRecord(workload=item.workload.shash, run_sec=measurement.median_sec, features=features)
            item.lessons.append(lesson)
        self._progress.listener()

    def _retime(
        self, item: WorkloadProgress, candidate: Candidate, measurement: Measurement, *, had_failed: bool
    ) -> None:
        if measurement.error is not None and not had_failed:
            item.errors[measurement.error] += 1
        features = candidate.built.features if candidate.built is not None else None
        item.retime(candidate.trace_json, features, measurement.median_sec)
        self._progress.listener()

    async def _book_untuned(self, item: WorkloadProgress, measurement: Measurement) -> None:
        await self._recorder.store(item, measurement)
        if measurement.error not in NO_VERDICT or not math.isfinite(item.untuned_sec):
            item.untuned_sec = measurement.median_sec
        if measurement.error is not None and measurement.error not in NO_VERDICT:
            item.closed_because = f"its unscheduled program failed: {measurement.error} {measurement.error_message}"
        self._progress.listener()

    async def _check(self, item: WorkloadProgress, batch: list[Candidate]) -> None:
        """Compare the numbers of the batch's fastest candidates, until one is right and the best so far."""
        timed = sorted((c for c in batch if math.isfinite(c.median_sec)), key=lambda c: c.median_sec)
        for candidate in timed[:_CHECKED_PER_BATCH]:
            found_sec = candidate.median_sec
            if found_sec >= item.best_sec:
                return
            if await self._checker.is_right(item, candidate):
                item.best_sec, item.best_trace = found_sec, candidate.trace_json
                self._progress.listener()
                return
