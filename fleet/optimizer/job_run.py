"""Runs one job, from its entry in the library to its report. The core decides, the loop performs its effects."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from cross.targets.target import Target
from fleet.base.machine import machine_fingerprint
from fleet.base.quantities import count_text
from fleet.building.turns import Turns
from fleet.client.aio import Fleet
from fleet.client.steady import SteadyDevice
from fleet.cost_model.packaged_model import has_prior
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.jobs import JobStatus, gain_factor, share_done
from fleet.domain.keys import NO_TRACE
from fleet.domain.measuring import Evaluator
from fleet.domain.model_snapshots import ModelSnapshot
from fleet.domain.scope import RecordScope, ScopeFilter, measured_model
from fleet.domain.workload import Workload, terms_of_model
from fleet.errors import CacheFull, FleetError, InvalidRequest
from fleet.fragments.extracted import Extracted
from fleet.jobs.entry import Beginning, Begun, JobEntry
from fleet.jobs.options import TuneOptions
from fleet.jobs.patience import patiently
from fleet.jobs.report import ModelReport, TuneReport
from fleet.library import Job, JobState, ModelRun
from fleet.library.proof_words import unproven_line
from fleet.model_schedules import are_static, schedules, without_static
from fleet.models.model import Model
from fleet.optimizer.best_artifacts import keep_best
from fleet.optimizer.charges import ChargesOfJob
from fleet.optimizer.conditions import Conditions
from fleet.optimizer.core.events import EndWanted
from fleet.optimizer.core.progress import JobProgress, WorkloadProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.fragment_keeping import FragmentKeeper
from fleet.optimizer.limits import is_worth_measuring, keep_roofline, known_roofline, measured_roofline, note_facts
from fleet.optimizer.loop import TuningLoop
from fleet.optimizer.model_comparison import ModelComparison
from fleet.optimizer.narrator import narrate
from fleet.optimizer.profiling.run import why_unfit
from fleet.optimizer.recall import choose_workloads, recall, traces_of, with_features
from fleet.optimizer.records_of_others import RecordsOfOthers
from fleet.optimizer.reporting import (
    report_batches,
    report_end,
    report_progress,
    report_workloads,
    rest_share,
    time_left,
)
from fleet.optimizer.strategies import strategy_of
from fleet.optimizer.trainer import follow, follow_service
from fleet.optimizer.whole_model_tuning.placing import Placing
from fleet.optimizer.workshop import Workshop
from fleet.packs.lookup import open_packs, sources_line

logger = logging.getLogger(__name__)

_PUBLISH_SEC = 1.0
_FRAGMENTS_SEC = 10.0
"""Time that a job waits at its end for the rest of its fragments. A later job finds the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Deadline of a search, on the clock of `time.monotonic` [s], and its message."""

    at_sec: float
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRun:
    """A job and its resources."""

    options: TuneOptions
    core: JobCore
    shop: Workshop
    client: Fleet
    device: SteadyDevice
    others: Sequence[SteadyDevice]
    """More devices of the same model."""

    inventory: Inventory
    model: Model
    extracted: Extracted
    """All workloads of the model, and their fragments."""

    target: Target
    started_at: float
    entry: JobEntry
    notices: Sequence[str] = ()
    """Messages shown to the user so far."""

    gives_back: bool = False
    """Give the device back while nothing is measured."""

    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """Moment from which the ages of records count. Aware."""

    @property
    def workloads(self) -> Sequence[Workload]:
        """All workloads of the model, costliest first."""
        return self.extracted.workloads

    async def run(self) -> TuneReport:
        """Run the job. The caller stores its end.

        Raises:
            FleetError, asyncio.CancelledError: see `fleet.optimizer.tune.tune`.
        """
        newest = await patiently(self.shop.library.newest_record)  # before the others' records are read
        chosen = choose_workloads(self.workloads, self.options.tasks, self.options.model.name)
        items = await patiently(partial(self.recalled, chosen))
        if older := await patiently(partial(self._count_older, chosen)):
            self.core.progress.notice(f"{count_text(older, 'record')} older than --max-age: only their schedules count")
        if strategy_of(self.options.strategy).replays:
            for item in items:
                item.replayed = await patiently(partial(traces_of, self.shop.library, item.workload))
        begun = await self.entry.begin(self._beginning(items))
        await patiently(partial(note_facts, self.shop.library, self.inventory.device_model, _facts(self.inventory)))
        if begun.notice:
            self.core.progress.notice(begun.notice)
        end = self._end()
        self.core.start(self._conditions(begun.job, end), begun.trials, items, overdrawn=begun.overdrawn)
        ended = asyncio.Event()
        publishing = asyncio.create_task(self._publish(begun, ended), name="publish job")
        state = JobState.FAILED
        try:
            model = await self._tune(items, end, newest)
            if model is not None:
                await patiently(partial(self.shop.library.add_model_run, _model_run(begun.job, model)))
            await patiently(partial(keep_best, self.shop.library, self.workloads, self._scope, self.shop.artifact_dir))
            state = JobState.FINISHED
            self.core.say("")
            ended.set()
            await asyncio.wait([publishing])  # so that others' view of the job agrees with its report
            return self._report(begun.job, model)
        except asyncio.CancelledError:
            state = JobState.INTERRUPTED
            raise
        finally:
            publishing.cancel()
            self.client.publish(self._status(begun, state))

    async def _tune(self, items: list[WorkloadProgress], end: _End, newest: int) -> ModelReport | None:
        """Args: newest: number of the library's newest record when `items` were read."""
        core = self.core
        turns = Turns(shares_cores=self._shares_cores, cores=self.shop.cores, hosts=self.shop.builders.hosts)
        loop = TuningLoop(
            core,
            device=self.device,
            others=self.others,
            pool=self.shop.builders,
            library=self.shop.library,
            turns=turns,
            gives_back=self.gives_back,
            cache=self.shop.cache,
        )
        others = RecordsOfOthers(
            library=self.shop.library,
            job_name=core.conditions.job_name,
            scope=self._scope,
            workloads=[item.workload.shash for item in items],
            first=newest,
        )
        charges = ChargesOfJob(library=self.shop.library, job_name=core.conditions.job_name, scope=self._scope)
        keeper = FragmentKeeper(
            library=self.shop.library,
            pool=self.shop.pool,
            turns=Turns(shares_cores=True, cores=self.shop.cores),
            target=self.target,
        )
        searching = asyncio.Event()
        keeping = asyncio.create_task(self._keep_fragments(keeper, items, searching), name="keep fragments")
        beside = [
            keeping,
            asyncio.create_task(charges.follow(core, turns), name="follow charges"),
            asyncio.create_task(self._follow(loop), name="follow snapshots"),
            asyncio.create_task(others.follow(core, turns), name="follow records"),
            asyncio.create_task(self._end_at_deadline(loop, end), name="end at the deadline"),
        ]
        try:
            report = await self._run_loop(loop, turns, items, charges, searching)
            await asyncio.wait([keeping], timeout=_FRAGMENTS_SEC)
            return report
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    async def _keep_fragments(
        self, keeper: FragmentKeeper, items: Sequence[WorkloadProgress], searching: asyncio.Event
    ) -> None:
        """Keep the fragments of the job's workloads, after its first measurements."""
        await searching.wait()
        try:
            await keeper.keep(self.extracted, [item.workload.shash for item in items])
        except FleetError as error:
            logger.warning("fragments not kept", extra={"error": str(error)})

    async def _follow(self, loop: TuningLoop) -> None:
        """Search with the newest snapshot that this program can read, from the library or the configured address."""

        def use(snapshot: ModelSnapshot) -> None:
            try:
                Snapshot.of(snapshot.content)
            except InvalidRequest as error:
                logger.warning("snapshot not used", extra={"digest": snapshot.digest, "error": str(error)})
            else:
                loop.use_snapshot(snapshot)

        address = self.options.snapshots
        await (follow_service(address, use) if address else follow(self.shop.library.memory, use))

    async def _run_loop(
        self,
        loop: TuningLoop,
        turns: Turns,
        items: list[WorkloadProgress],
        charges: ChargesOfJob,
        searching: asyncio.Event,
    ) -> ModelReport | None:
        core, progress = self.core, self.core.progress
        await loop.measure_static()
        await loop.measure_untuned()
        searching.set()
        core.choose_workloads(self.options.top)
        await self._recall_features(turns)
        await self._know_limits(loop, turns)
        await loop.take_up(await patiently(self._in_flight))
        await loop.run()
        core.charge(await patiently(partial(charges.settle, [item.workload.shash for item in items])))
        if not self.inventory.is_pretended and (line := _unproven(progress)):
            progress.notice(line)
        if not (self.options.compares_model and self.model.format.is_whole):
            return None
        if self.inventory.runtime is RuntimeKind.PLAIN:
            progress.notice(f"the whole model is not compared: {progress.device_name} runs plain functions only")
            return None
        if self.inventory.is_pretended:
            progress.notice(f"the whole model is not compared: {progress.device_name} only pretends to run programs")
            return None
        compared = {item.workload.shash: decided_trace(item) for item in progress.workloads}
        found = await patiently(partial(schedules, self.shop.library, self.workloads, self._within, compared))
        found = await patiently(partial(self.schedules_of_packs, compared.keys() | found.keys())) | found
        failed = await patiently(partial(without_static, self.shop.library, self.workloads, self._scope))
        if left := [workload.operator for workload in self.workloads if workload.shash in failed.keys() - found.keys()]:
            progress.notice(f"without a schedule in the model, since their static ones failed: {', '.join(left)}")
        run = ModelComparison(
            model=self.model,
            core=core,
            loop=loop,
            device=self.device,
            pool=self.shop.pool,
            turns=turns,
            threads=self.inventory.core_count,
            terms=terms_of_model(self.workloads),
            is_local=self._is_local,
            without_static=failed,
            has_static_only=await patiently(partial(are_static, self.shop.library, found, failed, self._scope)),
            placing=self._placing(loop, turns),
        )
        try:
            return await run.run(found)
        except CacheFull as error:
            progress.notice(f"the whole model is not compared: {error}")
            return None

    def recalled(self, chosen: Sequence[Workload]) -> list[WorkloadProgress]:
        """Return workloads with their records, and schedules of the user's packs."""
        with open_packs() as packs:
            return recall(self.shop.library, chosen, self._scope, packs, since=self._within.measured_since)

    def _count_older(self, chosen: Sequence[Workload]) -> int:
        return self.shop.library.count_older([one.shash for one in chosen], self._within)

    def schedules_of_packs(self, known: Collection[str]) -> dict[str, str]:
        """Return the schedules that packs have for workloads of the model that this job has no verdict about."""
        with open_packs() as packs:
            found = packs.best([one.shash for one in self.workloads if one.shash not in known], self._scope)
        if line := sources_line(found):
            self.core.progress.notice(f"in the model: {line}")
        return {shash: one.record.trace_json for shash, one in found.items()}

    async def _know_limits(self, loop: TuningLoop, turns: Turns) -> None:
        """Set the job's limits by the device's roofline; a large job measures it if it is unknown."""
        model = self.inventory.device_model
        roofline = await patiently(partial(known_roofline, self.shop.library, model))
        if roofline is None and is_worth_measuring(self.inventory, self.core.progress.trials_total):
            self.core.say(f"measuring how fast {self.core.progress.device_name} can be")
            roofline = await measured_roofline(
                loop,
                device=self.device,
                pool=self.shop.builders,
                turns=turns,
                target=self.target,
                folder=self.shop.artifact_dir,
            )
            if roofline is not None:
                await patiently(partial(keep_roofline, self.shop.library, model, roofline))
        if roofline is not None:
            self.core.limit(roofline)

    def _in_flight(self) -> dict[str, dict[str, str]]:
        """Return the job's claims from before its interruption: for each of its workloads, traces by digest."""
        progress = self.core.progress
        found = self.shop.library.claims.in_flight(progress.job_name, self._scope)
        own = {item.workload.shash for item in progress.workloads if item.closing is None}
        return {shash: traces for shash, traces in found.items() if shash in own}

    def _placing(self, loop: TuningLoop, turns: Turns) -> Placing:
        return Placing(
            inputs=self.model.inputs,
            workloads=self.workloads,
            device=self.device,
            library=self.shop.library,
            conditions=self.core.conditions,
            turns=turns,
            measuring=loop.measuring,
            is_profiled=not (why_unfit(self.inventory) or self.model.others)
            and have_alternatives(self.core.progress.workloads, self.workloads),
        )

    @property
    def _scope(self) -> RecordScope:
        return RecordScope(
            target_json=self.target.json,
            device_model=measured_model(self.inventory.device_model, self.options.evaluator),
            tvm_version=self.inventory.tvm_version,
        )

    @property
    def _within(self) -> ScopeFilter:
        """The records of this job's scope that are not too old."""
        age_sec = self.options.max_age_sec
        since = None if age_sec is None else self.began_at - timedelta(seconds=age_sec)
        return ScopeFilter(measured_since=since).of(self._scope)

    @property
    def _is_local(self) -> bool:
        return self.inventory.host_fingerprint == machine_fingerprint()

    @property
    def _shares_cores(self) -> bool:
        """True if search and builds disturb the device."""
        return self.inventory.host_fingerprint in self.shop.builders.hosts

    def _conditions(self, job: Job, end: _End) -> Conditions:
        options = self.options
        return Conditions(
            job_name=job.name,
            scope=self._scope,
            since=self._within.measured_since,
            device_fingerprint=self.inventory.host_fingerprint,
            seed=options.seed,
            batch_size=options.batch_size,
            search_threads=options.workers or os.cpu_count() or 1,
            shares_cores=self._shares_cores,
            enough=options.enough,
            strategy=options.strategy,
            uses_model=strategy_of(options.strategy).uses_model,
            has_prior=has_prior(self.target),
            target_sec=None if options.target_ms is None else options.target_ms / 1e3,
            deadline_sec=end.at_sec,
            priority=gain_factor(options.priority),
            until_gain=options.until_gain,
            is_bound_by_time=options.minutes is not None and options.trials is None,
            evaluator=options.evaluator,
            trial_timeout_sec=options.trial_timeout_sec + _rests_sec(options.evaluator),
            artifact_dir=self.shop.artifact_dir,
            started_at=self.started_at,
        )

    def _beginning(self, items: list[WorkloadProgress]) -> Beginning:
        options = self.options
        count = len(items) if options.top is None else min(options.top, len(items))
        each = options.trials_per_workload if options.minutes is None else options.enough
        total = options.trials if options.trials is not None else each * count
        return Beginning(
            title=options.title,
            model_digest=self.model.digest,
            conditions=options.conditions(),
            scope=self._scope,
            trials=total,
            tuner=strategy_of(options.strategy).summary,
            weight_by_shash={item.workload.shash: item.workload.weight for item in items},
            tags=options.tags,
        )

    def _end(self) -> _End:
        """Return the deadline of the search: the user's deadline, or the end of its minutes."""
        now_sec, deadline, minutes = time.monotonic(), self.options.deadline, self.options.minutes
        ends = [_End(at_sec=math.inf)]
        if deadline is not None:
            left_sec = (deadline - datetime.now(UTC)).total_seconds()
            ends.append(_End(at_sec=now_sec + left_sec, why="the job's deadline is reached"))
        if minutes is not None:
            ends.append(_End(at_sec=now_sec + 60 * minutes, why=f"the {minutes:g} min of --minutes are over"))
        return min(ends, key=lambda end: end.at_sec)

    async def _end_at_deadline(self, loop: TuningLoop, end: _End) -> None:
        if math.isfinite(end.at_sec):
            await asyncio.sleep(end.at_sec - time.monotonic())
            await loop.apply(EndWanted(end.why))

    async def _recall_features(self, turns: Turns) -> None:
        """Start the cost model with the stored knowledge."""
        known = [item for item in self.core.progress.workloads if item.trials_before]
        if not known:
            return
        self.core.say("loading the records of earlier jobs")
        async with turns.building():
            found = await asyncio.gather(
                *(with_features(self.shop.builders, self.shop.library, item, self._scope) for item in known)
            )
        for item, observations in zip(known, found, strict=True):
            self.core.recall(item.workload.shash, observations)

    async def _publish(self, begun: Begun, ended: asyncio.Event) -> None:
        """Publish the job's progress every second, and once more at its end."""
        done_before = begun.job.trials_done
        is_last = False
        while not is_last:
            is_last = ended.is_set()
            self.client.publish(self._status(begun, JobState.RUNNING))
            elapsed_sec = time.monotonic() - self.started_at
            report = report_progress(self.core.progress, elapsed_sec=elapsed_sec, done_before=done_before)
            try:
                await asyncio.to_thread(
                    self.entry.tell,
                    replace(
                        report,
                        selector=self.options.selector,
                        notices=tuple(self.notices),
                        builder_count=self.shop.builder_count,
                    ),
                )
            except FleetError as error:  # the job itself stops when it cannot store a result
                logger.warning("progress not stored", extra={"job": begun.job.name, "error": str(error)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PUBLISH_SEC):
                    await ended.wait()

    def _status(self, begun: Begun, state: JobState) -> JobStatus:
        job = begun.job
        progress = self.core.progress
        return JobStatus(
            name=job.name,
            title=progress.title,
            holder=job.holder,
            state=state,
            started_at_sec=job.started_at.timestamp(),
            trials_done=progress.trials_done,
            trials_total=progress.trials_asked,
            share_done=share_done(
                progress.trials_done,
                progress.trials_asked,
                elapsed_sec=time.monotonic() - self.started_at,
                search_sec=progress.search_sec,
            ),
            trials_failed=progress.trials_failed,
            best_us=progress.total_sec(tuned=True) * 1e6,
            untuned_us=progress.total_sec(tuned=False) * 1e6,
            workload_count=len(progress.workloads),
            activity=narrate(progress.activity),
            trials_repeated=progress.repeats.count,
            optimizer=f"{job.host}:{job.pid}" if self.shop.client is not None else "",
            builder_count=self.shop.builder_count,
            left=time_left(progress, time.monotonic() - self.started_at) if state is JobState.RUNNING else None,
            rest_share=rest_share(progress) if state is JobState.RUNNING else None,
            decision="".join(map(str, report_batches(progress, [*progress.decisions][-1:]))),
        )

    def _report(self, job: Job, model: ModelReport | None) -> TuneReport:
        progress = self.core.progress
        return TuneReport(
            job=job.name,
            title=progress.title,
            device=progress.device_name,
            device_model=self.core.conditions.scope.device_model,
            library=self.shop.library.url,
            trials=progress.trials_done,
            repeats=progress.repeats,
            wall_sec=time.monotonic() - self.started_at,
            first_trial_sec=progress.first_trial_sec,
            last_record_sec=progress.last_record_sec,
            workloads=report_workloads(progress),
            model=model,
            charged_sec=progress.charged_sec,
            ended=report_end(progress),
            target_json=self.target.json,
        )


def have_alternatives(items: Sequence[WorkloadProgress], workloads: Sequence[Workload]) -> bool:
    """Tell whether a model may have several schedules of an operator to compare, and not only its static one.

    Args:
        items: progress of the chosen workloads.
        workloads: all workloads of the model. Those that were not chosen may have records.
    """
    return len(items) < len(workloads) or any(item.trials_before or len(item.records) > 1 for item in items)


def decided_trace(item: WorkloadProgress) -> str | None:
    """Return the trace that the model gets; NO_TRACE if it is faster without a schedule, None if there is none."""
    if item.best_trace is None:
        return None
    return item.best_trace if item.uses_schedule else NO_TRACE


def _unproven(progress: JobProgress) -> str:
    """Return a warning with the number of used schedules without a proven time; empty if all are proven."""
    used = [item for item in progress.workloads if item.uses_schedule]
    unproven = [item for item in used if item.needs_proof]
    reason = next((item.unprovable for item in unproven if item.unprovable), "")
    return unproven_line(len(unproven), len(used), reason)


def _model_run(job: Job, model: ModelReport) -> ModelRun:
    names = ("untuned_ms", "tuned_ms", "onnxruntime_ms", "max_abs_error")
    times = {name: getattr(model, name) for name in names}
    return ModelRun(job_name=job.name, created_at=datetime.now(UTC), **times)


def _facts(inventory: Inventory) -> dict[str, object]:
    """Return the data shared by all devices of one model."""
    shared = ("kind", "target_json", "core_count", "memory_bytes", "is_simulated", "facts")
    return {name: getattr(inventory, name) for name in shared}


def _rests_sec(evaluator: Evaluator) -> float:
    """Return how long a candidate may pause between repeats; its own time limit does not include that."""
    return max(evaluator.repeat, evaluator.max_repeat) * evaluator.cooldown_interval_ms / 1000
