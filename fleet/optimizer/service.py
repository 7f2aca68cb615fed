"""One tuning run from a model file to a report: everything around the loop.

Without a tracker's address a fleet for this machine is started as child processes and stopped at the end. TVM never
runs in this process: import, extraction, search and builds are tasks of the pool.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cross.intrinsics import target_hint
from cross.pool import BuildPool
from fleet import aio
from fleet.client.aio import Fleet, default_holder
from fleet.client.device import Device
from fleet.client.local import LocalFleet, agent_args_for
from fleet.config import nearest
from fleet.errors import FleetError, ImportFailed, InvalidRequest
from fleet.library import Job, JobState, Library
from fleet.machine import machine_fingerprint
from fleet.measuring import Evaluator
from fleet.optimizer.candidates import Conditions
from fleet.optimizer.history import Where, interrupted_job, recall
from fleet.optimizer.job import ModelReport, TuneOptions, TuneReport, report_workloads
from fleet.optimizer.learn import LearnRecord, features_of
from fleet.optimizer.model_run import run_model
from fleet.optimizer.pipeline import Pipeline
from fleet.optimizer.progress import JobProgress, WorkloadProgress
from fleet.optimizer.repeats import Repeats
from fleet.optimizer.seat import Seat
from fleet.optimizer.turns import Turns
from fleet.scratch import scratch_dir
from fleet.selectors import parse_selector
from fleet.tvm_versions import check_versions
from fleet.v1 import job_pb2
from fleet.wire import timestamp
from fleet.workloads.extract import Model, Workload, extract, load_model

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PUBLISH_SEC = 1.0
_FIRST_BATCH = 4
"""Candidates tried before anything else is measured."""

_IMPORT_TIMEOUT_SEC = 600.0
_RECALLED_FEATURES = 256
"""Newest earlier candidates of a workload whose features are computed again for the cost model."""


async def tune(options: TuneOptions, progress: JobProgress, *, started_at: float) -> TuneReport:
    """Run one job.

    Args:
        progress: filled in as the job goes on.
        started_at: time.monotonic() of the start of the process, where its clocks begin.

    Raises:
        FleetError: with all finished trials in the library.
        asyncio.CancelledError: the same, the job being INTERRUPTED.
    """
    check_versions()
    if not options.model.is_file():
        raise ImportFailed(f"there is no model file {options.model}; name an .onnx file")
    async with AsyncExitStack() as stack:
        library = stack.enter_context(await asyncio.to_thread(Library.open, options.library))
        # Before the pool, so that it goes after the last build that writes into it.
        artifact_dir = stack.enter_context(scratch_dir("artifacts"))
        wanted = options.target_json or target_hint(parse_selector(options.selector).kind)
        pool = BuildPool(options.workers, timeout_sec=options.build_timeout_sec, target_json=wanted)
        # What still runs at the end is not wanted any more, and a model may compile for minutes.
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        progress.title = options.model.name
        run = _Run(
            options=options,
            progress=progress,
            library=library,
            pool=pool,
            artifact_dir=artifact_dir,
            stack=stack,
            started_at=started_at,
        )
        return await run.run()


@dataclass(kw_only=True)
class _Run:
    """The parts of one run, opened one after the other on `stack`."""

    options: TuneOptions
    progress: JobProgress
    library: Library
    pool: BuildPool
    artifact_dir: Path
    stack: AsyncExitStack
    started_at: float

    async def run(self) -> TuneReport:
        self.progress.say(f"importing {self.options.model.name}")
        importing = asyncio.create_task(self._import_model(), name="import model")
        try:
            client = await self._connect()
            model = await importing
        finally:
            importing.cancel()
        self.progress.say(f"waiting for a device: {self.options.selector}")
        seat = await self.stack.enter_async_context(self._make_seat(client))
        device = await seat.device()
        target_json = self.options.target_json or device.inventory.target_json
        self.progress.device_name = device.name
        self.progress.device_model = device.inventory.device_model
        self.progress.say("finding the workloads")
        workloads = await self._in_pool(extract, model, target_json)
        return await self._run_job(client, seat, device, model, self._named(workloads), workloads, target_json)

    async def _run_job(
        self,
        client: Fleet,
        seat: Seat,
        device: Device,
        model: Model,
        chosen: Sequence[Workload],
        workloads: Sequence[Workload],
        target_json: str,
    ) -> TuneReport:
        options, progress, inventory = self.options, self.progress, device.inventory
        shares_cores = inventory.host_fingerprint == machine_fingerprint()
        turns = Turns(shares_cores=shares_cores)
        where = Where(target_json=target_json, device_model=inventory.device_model, tvm_version=inventory.tvm_version)
        items = await asyncio.to_thread(recall, self.library, chosen, where)
        job, total = self._start_job(model, {**options.conditions(), **where}, items)
        progress.job_name, progress.trials_total, progress.workloads = job.name, total, items
        publishing = asyncio.create_task(self._publish(client, job), name="publish job")
        state, message = JobState.FAILED, "ended by an error"
        try:
            pipeline = Pipeline(
                progress=progress,
                conditions=Conditions(
                    job_name=job.name,
                    device_fingerprint=inventory.host_fingerprint,
                    seed=options.seed,
                    batch_size=options.batch_size,
                    search_threads=options.workers or os.cpu_count() or 1,
                    enough=options.enough,
                    evaluator=options.evaluator,
                    trial_timeout_sec=options.trial_timeout_sec + _rests_sec(options.evaluator),
                    artifact_dir=self.artifact_dir,
                    started_at=self.started_at,
                    **where,
                ),
                seat=seat,
                pool=self.pool,
                library=self.library,
                turns=turns,
            )
            if items and total and not items[0].records:
                await pipeline.try_first(items[0], min(_FIRST_BATCH, total))
            await pipeline.measure_untuned(items)
            self._keep_costliest(items)
            await self._recall_features(progress.workloads, target_json, turns)
            await pipeline.run(total)
            report = None
            runs_models = inventory.labels.get("runtime") != "plain"
            if options.compares_model and not runs_models:
                progress.notice(f"the whole model is not compared: {device.name} runs plain functions only")
            if options.compares_model and runs_models:
                report = await run_model(
                    model,
                    await asyncio.to_thread(self._schedules, workloads, where),
                    target_json=target_json,
                    out_dir=self.artifact_dir,
                    seat=seat,
                    repeats=Repeats(seat, progress),
                    pool=self.pool,
                    turns=turns,
                    seed=options.seed,
                    threads=inventory.core_count,
                    is_local=shares_cores,
                    say=progress.say,
                )
            state, message = JobState.FINISHED, ""
            progress.say("")
            return self._report(job, report)
        except asyncio.CancelledError:
            state, message = JobState.INTERRUPTED, "stopped by its user"
            raise
        except FleetError as error:
            message = str(error)
            raise
        finally:
            publishing.cancel()
            client.publish(self._job_message(job, state))
            self._finish_job(job, state, message)

    def _finish_job(self, job: Job, state: JobState, message: str) -> None:
        """Write how the job ended. Nothing is awaited: it must be written even while the task is being cancelled."""
        try:
            self.library.finish_job(job.name, state, message=message)
        except FleetError as error:
            if state is JobState.FINISHED:
                raise
            # What ended the job is what its user has to hear. Readers find out that the process is gone.
            logger.warning("end of job not written", extra={"job": job.name, "error": str(error)})

    async def _connect(self) -> Fleet:
        address = self.options.tracker
        if address is None:
            self.progress.say("starting a tracker and an agent for this machine")
            agent_args = agent_args_for(self.options.selector)
            local = await self.stack.enter_async_context(
                LocalFleet(agent_args=agent_args, restarts=True, on_change=self.progress.notice)
            )
            address = local.address
        client = aio.connect(address, connect_timeout_sec=self.options.connect_timeout_sec)
        return await self.stack.enter_async_context(client)

    def _make_seat(self, client: Fleet) -> Seat:
        options, progress = self.options, self.progress

        def on_queued(pending: Any) -> None:
            place = f"{pending.position} before us" if pending.position else "next in the queue"
            progress.say(f"waiting for a device, {place}: {pending.reason}")

        return Seat(
            client,
            options.selector,
            purpose=f"tune {options.model.name}",
            priority=options.priority,
            wait_timeout_sec=options.wait_timeout_sec,
            notice=progress.notice,
            on_queued=on_queued,
        )

    async def _import_model(self) -> Model:
        seed = self.options.seed if self.options.random_weights else None
        return await self._in_pool(
            load_model, self.options.model, shapes=dict(self.options.shapes), random_weights_seed=seed
        )

    def _named(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return the workloads that `tasks` names, costliest first."""
        patterns = self.options.tasks
        if not workloads:
            raise InvalidRequest(f"{self.options.model.name} has no operator that can be tuned")
        chosen = [w for w in workloads if not patterns or any(fnmatch.fnmatchcase(w.name, p) for p in patterns)]
        if not chosen:
            known = [workload.name for workload in workloads]
            raise InvalidRequest(
                f"no workload of {self.options.model.name} matches {', '.join(patterns)}"
                f"{nearest(patterns[0], known) if patterns else ''}"
            )
        return chosen

    def _keep_costliest(self, items: list[WorkloadProgress]) -> None:
        """Sort by weighted unscheduled time and keep `top`; the rest of the job sees only these."""
        items.sort(key=lambda item: -item.workload.weight * min(item.untuned_sec, 1e9))
        self.progress.workloads = items[: self.options.top]
        if self.options.trials is None:
            self.progress.trials_total = self.options.trials_per_workload * len(self.progress.workloads)
        self.progress.listener()

    def _start_job(
        self, model: Model, conditions: dict[str, object], items: Sequence[WorkloadProgress]
    ) -> tuple[Job, int]:
        count = len(items) if self.options.top is None else min(self.options.top, len(items))
        total = self.options.trials if self.options.trials is not None else self.options.trials_per_workload * count
        older = interrupted_job(self.library, model.digest, conditions)
        if older is not None:
            total = max(0, older.trials_total - older.trials_done)
            self.progress.notice(
                f"going on with {older.name}, interrupted after {older.trials_done} of {older.trials_total} trials"
            )
            conditions = {**conditions, "resumes": older.name}
        job = self.library.start_job(
            title=self.options.model.name,
            model_digest=model.digest,
            conditions=conditions,
            tuner="evolutionary search, gradient-boosted trees",
            trials_total=total,
            holder=default_holder(),
        )
        self.library.add_job_workloads(job.name, {item.workload.shash: item.workload.weight for item in items})
        return job, total

    async def _recall_features(self, items: Sequence[WorkloadProgress], target_json: str, turns: Turns) -> None:
        """Compute the features of earlier candidates again, so that the cost model starts with what was learnt."""
        known = [item for item in items if item.trials_before]
        if not known:
            return
        self.progress.say("recalling what was learnt before")
        async with turns.building():
            await asyncio.gather(*(self._recall_features_of(item, target_json) for item in known))

    async def _recall_features_of(self, item: WorkloadProgress, target_json: str) -> None:
        records = item.records[-_RECALLED_FEATURES:]
        traces = [record.trace_json for record in records]
        features = await self._in_pool(features_of, item.workload.mod_json, target_json, traces)
        item.lessons.extend(
            LearnRecord(workload=item.workload.shash, run_sec=record.run_sec, features=rows)
            for record, rows in zip(records, features, strict=True)
        )

    def _schedules(self, workloads: Sequence[Workload], where: Where) -> dict[str, str]:
        """Return the best checked trace of every workload of the model that has one, chosen or not."""
        best = {w.shash: self.library.best(w.shash, checked_only=True, **where) for w in workloads}
        return {shash: records[0].trace_json for shash, records in best.items() if records}

    def _report(self, job: Job, model: ModelReport | None) -> TuneReport:
        return TuneReport(
            job=job.name,
            title=self.progress.title,
            device=self.progress.device_name,
            device_model=self.progress.device_model,
            library=self.library.url,
            trials=self.progress.trials_done,
            repeated=self.progress.repeated,
            wall_sec=time.monotonic() - self.started_at,
            first_trial_sec=self.progress.first_trial_sec,
            last_record_sec=self.progress.last_record_sec,
            workloads=report_workloads(self.progress),
            model=model,
        )

    async def _publish(self, client: Fleet, job: Job) -> None:
        while True:
            client.publish(self._job_message(job, JobState.RUNNING))
            await asyncio.sleep(_PUBLISH_SEC)

    def _job_message(self, job: Job, state: JobState) -> job_pb2.Job:
        progress = self.progress
        return job_pb2.Job(
            name=job.name,
            title=progress.title,
            holder=job.holder,
            state=f"JOB_STATE_{state.value}",
            started_at=timestamp(job.started_at.timestamp()),
            trials_done=progress.trials_done,
            trials_total=progress.trials_total,
            trials_failed=progress.trials_failed,
            best_us=progress.total_sec(tuned=True) * 1e6,
            untuned_us=progress.total_sec(tuned=False) * 1e6,
            workload_count=len(progress.workloads),
            activity=progress.activity,
            trials_repeated=progress.repeated,
        )

    async def _in_pool(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return await asyncio.wrap_future(self.pool.submit_within(_IMPORT_TIMEOUT_SEC, fn, *args, **kwargs))


def _rests_sec(evaluator: Evaluator) -> float:
    """Return how long a candidate may rest between its repeats, which is no fault of its own."""
    return max(evaluator.repeat, evaluator.max_repeat) * evaluator.cooldown_interval_ms / 1000
