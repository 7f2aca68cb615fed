"""An optimizer: takes jobs from the library, and runs them with the code of `fleet tune`.

Any number of them share a library and a tracker. Killed at any moment, it costs the trials in flight: another one, or
the next process on its machine, goes on with its jobs from their records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import shutil
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cross.compile.cache import BuildCache
from cross.pool.build_pool import BuildPool
from fleet import aio
from fleet.base.machine import account_name
from fleet.base.metrics import serving_metrics
from fleet.base.open_files import raise_file_limit
from fleet.base.scratch import scratch_dir
from fleet.base.tasks import started, together
from fleet.building import MODULES
from fleet.building.cluster.address import ClusterAddress
from fleet.building.machine_turns import MachineTurns
from fleet.building.turns import Cores, Turns
from fleet.client.connection import account_credentials
from fleet.client.revoked_keys import guarded_by
from fleet.domain.jobs import OptimizerStatus
from fleet.domain.selectors import ANY
from fleet.domain.tvm_versions import check_versions
from fleet.errors import FleetError
from fleet.jobs.claim import JobClaim
from fleet.jobs.entry import QueuedEntry, kept_reports
from fleet.jobs.options import TuneOptions
from fleet.jobs.patience import patiently
from fleet.jobs.report import TuneReport
from fleet.jobs.spec import JobOrder, order_of, restore_model
from fleet.library import Job, JobState, Library, Standing
from fleet.optimizer.builder_plan import BuilderPlan
from fleet.optimizer.core.kinds import TrialsOfKinds
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.learning import learning
from fleet.optimizer.refreshing.idle import IdleRules, matches_any
from fleet.optimizer.refreshing.idle_device import NOTE
from fleet.optimizer.serving.cost_model_service import ServingAddress, serving_snapshots
from fleet.optimizer.serving.idle_refresh import IdleRefresh, MakeRefresh, with_pool
from fleet.optimizer.tune import OpenJob
from fleet.optimizer.workshop import Workshop, open_builders

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

_POLL_SEC = 0.5
"""Interval of looks for submitted jobs, and of this process's heartbeats in the library."""

_KEPT_NOTICES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerOptions:
    """One `fleet optimizer serve`."""

    tracker: str
    library: str | None = None
    jobs: int = 2
    """Jobs that run at the same time."""

    workers: int | None = None
    """Build processes that they share; None: one per core."""

    cluster: ClusterAddress | None = None
    """Builders that search and build; None: this machine does."""

    build_cache: BuildCache | None = None
    """Cache of this machine's builds, kept beyond the job."""

    snapshots: str | None = None
    """Address of an optimizer with snapshots of the cost model for the jobs; None: those of the library."""

    serves_at: ServingAddress | None = None
    """Address at which the library's cost model is served to clients that cannot reach the library; None: none."""

    metrics: str | None = None
    """Address at which metrics are served; None: none."""

    refresh: IdleRules | None = None
    """Limits of refreshing the library in idle time; None: it is not refreshed."""

    build_timeout_sec: float = 30.0
    connect_timeout_sec: float = 10.0


async def serve(options: OptimizerOptions, *, make_refresh: MakeRefresh | None = None) -> None:
    """Take jobs and run them until cancelled. Jobs that run then go back into the queue.

    Args:
        make_refresh: returns a refresh in idle time; None: it builds in the pool.

    Raises:
        LibraryError: the library cannot be opened.
        TrackerUnavailable: no tracker answers.
    """
    check_versions()
    raise_file_limit()
    async with AsyncExitStack() as stack:
        library = stack.enter_context(await asyncio.to_thread(Library.open, options.library))
        artifact_dir = stack.enter_context(scratch_dir("artifacts"))
        pool = BuildPool(options.workers, timeout_sec=options.build_timeout_sec, modules=MODULES)
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        client = aio.connect(options.tracker, connect_timeout_sec=options.connect_timeout_sec)
        shop = Workshop(
            library=library,
            pool=pool,
            builders=await open_builders(stack, pool, options.cluster, build_timeout_sec=options.build_timeout_sec),
            artifact_dir=artifact_dir,
            cache=options.build_cache,
            cores=Cores(MachineTurns.of_this_machine()),
            client=await stack.enter_async_context(client),
        )
        await stack.enter_async_context(learning(library, shop.builders, Turns(shares_cores=True, cores=shop.cores)))
        if options.serves_at is not None:
            mine = await account_credentials(options.tracker)
            guard = await stack.enter_async_context(guarded_by(options.tracker))
            await stack.enter_async_context(serving_snapshots(library.memory, options.serves_at, mine, guard))
        optimizer = OptimizerDaemon(shop, tracker=options.tracker, most_jobs=options.jobs, snapshots=options.snapshots)
        await stack.enter_async_context(serving_metrics(options.metrics, partial(_register_metrics, optimizer)))
        if options.refresh is not None:
            idle = aio.connect(options.tracker, connect_timeout_sec=options.connect_timeout_sec, holder=NOTE)
            refresh = IdleRefresh(
                library=library,
                client=await stack.enter_async_context(idle),
                rules=options.refresh,
                jobs=optimizer,
                make=make_refresh or with_pool(library, pool, shop.cores),
            )
            await stack.enter_async_context(started(refresh.run(), name="idle refreshes"))
        await optimizer.run()


def _register_metrics(optimizer: OptimizerDaemon, registry: CollectorRegistry) -> None:
    from fleet.optimizer.serving.metrics import OptimizerMetrics  # needs an extra

    registry.register(OptimizerMetrics(optimizer))


class OptimizerDaemon:
    """Runs the jobs of one library on one fleet."""

    def __init__(self, shop: Workshop, *, tracker: str, most_jobs: int, snapshots: str | None = None) -> None:
        self._shop = shop
        self._tracker = tracker
        self._snapshots = snapshots
        self.most_jobs = most_jobs
        self._plan = BuilderPlan(shop.pool, lambda: len(self._running)) if shop.builders is shop.pool else None
        """None: the builders are on other machines, and take tasks in the order of their arrival."""

        self.is_library_reachable = True
        self.ends: Counter[JobState] = Counter()
        """Number of ended jobs by state, including jobs that were queued again."""

        self._name = ""
        self._shown: OptimizerStatus | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._selectors: dict[str, tuple[str, ...]] = {}
        """Selectors of the running jobs' devices, by job."""

        self._may_wait = True
        """True if jobs may wait in the library."""

    @property
    def running_count(self) -> int:
        """Number of jobs that run now."""
        return len(self._running)

    def want(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a job waits, or a running one may use a device with these labels."""
        return self._may_wait or any(matches_any(selectors, labels) for selectors in self._selectors.values())

    async def run(self) -> None:
        """Take and run jobs until cancelled. Waits for a library that is temporarily unavailable."""
        queue = self._shop.library.queue
        self._name = await asyncio.to_thread(queue.register, tracker=self._tracker, holder=account_name())
        logger.info("optimizer started", extra={"optimizer": self._name, "library": self._shop.library.url})
        if self._shop.client is not None and not self._shop.client.may_ask_for_others:
            logger.info("devices for all jobs count for this optimizer's account; its key may not ask for others")
        try:
            while True:
                self._show()
                try:
                    await asyncio.to_thread(queue.alive, self._name)
                    await self._fill()
                    self._may_wait = len(self._running) >= self.most_jobs
                    self.is_library_reachable = True
                except FleetError as error:
                    if self.is_library_reachable:
                        logger.warning("the library is unavailable, retrying", extra={"error": str(error)})
                    self.is_library_reachable, self._may_wait = False, True
                await asyncio.sleep(_POLL_SEC)
        finally:
            for job in self._running:
                job.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
            with contextlib.suppress(FleetError):  # its entry expires soon anyway
                queue.leave(self._name)

    def _show(self) -> None:
        """Show this optimizer in `fleet status`, also while it is idle."""
        status = OptimizerStatus(name=f"{platform.node()}:{os.getpid()}", builder_count=self._shop.builder_count)
        if self._shop.client is not None and status != self._shown:
            self._shop.client.publish(status)
            self._shown = status

    async def _fill(self) -> None:
        """Claim jobs up to the limit."""
        while len(self._running) < self.most_jobs:
            take, fleet_id = self._shop.library.queue.take, self._shop.client.fleet_id if self._shop.client else ""
            job = await asyncio.to_thread(take, self._name, tracker=self._tracker, fleet_id=fleet_id)
            if job is None:
                return
            ours = {task.get_name() for task in self._running}  # now, including jobs claimed a moment ago
            if job.name in ours:  # its former claim had expired, as on a machine that slept
                logger.warning("claim of a running job renewed after its expiry", extra={"job": job.name})
                continue
            logger.info("job taken", extra={"job": job.name, "title": job.title, "trials_done": job.trials_done})
            self._selectors[job.name] = (str(ANY),)  # until its order is read
            task = asyncio.create_task(self._run(job), name=job.name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, job: Job) -> None:
        """Run a job to its end, and store its outcome, unless the claim was lost by then."""
        claim = JobClaim(self._shop.library, job.name, self._name)
        work = asyncio.create_task(self._work(job), name=f"{job.name} work")
        keeping = asyncio.create_task(claim.keep(work), name=f"{job.name} claim")
        try:
            end = await self._end_of(work, job, claim)
            await self._write_end(end, job, claim)
        finally:
            keeping.cancel()
            self._selectors.pop(job.name, None)
        self.ends[end.state] += 1
        logger.info("job ended", extra={"job": job.name, "state": end.state.value, "reason": end.message})

    async def _end_of(self, work: asyncio.Task[list[TuneReport]], job: Job, claim: JobClaim) -> _End:
        """Wait until a job's work is over."""
        try:
            return _End(JobState.FINISHED, report=kept_reports(await work))
        except asyncio.CancelledError:
            await asyncio.gather(work, return_exceptions=True)
            if claim.standing is Standing.STOP_ASKED:
                return _End(JobState.CANCELLED, "cancelled")
            return _End(JobState.QUEUED, "its optimizer was stopped; it waits for another")
        except FleetError as error:
            return _End(JobState.FAILED, str(error))
        except Exception as error:  # outermost edge of a job, which must not end the others
            logger.exception("job failed unexpectedly", extra={"job": job.name})
            return _End(JobState.FAILED, f"{type(error).__name__}: {error}; the log of its optimizer says where")

    async def _write_end(self, end: _End, job: Job, claim: JobClaim) -> None:
        """Store a job's outcome; retry while the library fails and the claim lasts.

        A process that ends asks once: another that finds it gone puts the job back into the queue.
        """
        queue, this_run = self._shop.library.queue, asyncio.current_task()
        write = partial(queue.end, job.name, self._name, end.state, message=end.message, report=end.report)
        while claim.standing is not Standing.LOST:
            try:
                await asyncio.to_thread(write)
                return
            except FleetError as error:
                logger.warning("end of job not written", extra={"job": job.name, "error": str(error)})
            if this_run is not None and this_run.cancelling():
                return
            await asyncio.sleep(_POLL_SEC)

    async def _work(self, job: Job) -> list[TuneReport]:
        """Tune for each kind of board."""
        order = order_of(job)
        self._selectors[job.name] = tuple(order.options.selectors)
        entry = QueuedEntry(self._shop.library, job, self._name)
        with scratch_dir("model") as folder, _shop_of_one_job(self._shop) as shop:
            model = await patiently(partial(restore_model, shop.library, order, folder))
            # Override options that control the place of execution or access to files of this machine.
            here = replace(
                order.options,
                model=model,
                tracker=None,
                library=None,
                snapshots=self._snapshots,
                workers=None,
                cluster=None,
                build_cache=None,
            )
            wanted = for_each_kind(here)
            account = _account_for(order, shop.client)
            turns = account or job.owner or job.holder
            kinds = TrialsOfKinds()
            tunes = {
                f"{job.name} {place}": self._tune(each, entry, shop, account, turns, kinds)
                for place, each in enumerate(wanted)
            }
            return await together(tunes)

    async def _tune(
        self,
        options: TuneOptions,
        entry: QueuedEntry,
        shop: Workshop,
        account: str,
        turns: str,
        kinds: TrialsOfKinds,
    ) -> TuneReport:
        """Tune for one kind of board.

        Args:
            account: account for the requests of devices; "": this optimizer's own.
            turns: account for the turns on the builders.
            kinds: trials of all kinds of the job.
        """
        notices: deque[str] = deque(maxlen=_KEPT_NOTICES)
        progress = JobProgress(notice=notices.append)
        core = JobCore(progress, kinds)
        if self._plan is not None:
            shop = replace(shop, builders=self._plan.seat(turns, lambda: progress.worth, entry.job_name))
        opening = OpenJob(
            options=options,
            core=core,
            shop=shop,
            entry=entry,
            started_at=time.monotonic(),
            notices=notices,
            account=account,
        )
        return await opening.run()


@dataclass(frozen=True, slots=True)
class _End:
    """Temporary or final end of a job."""

    state: JobState
    message: str = ""
    report: Mapping[str, object] | None = None


def _account_for(order: JobOrder, client: aio.Fleet | None) -> str:
    """Return the account that a job's requests count for: its submitter's if this optimizer may ask for it, else ""."""
    if client is None or not client.may_ask_for_others or order.fleet_id != client.fleet_id:
        return ""
    return order.account


@contextlib.contextmanager
def _shop_of_one_job(shop: Workshop) -> Iterator[Workshop]:
    """Give a job its own folder for builds, and remove it when the job ends.

    It lies in that of all jobs: files that a worker still writes for a stopped job go with the process.
    """
    folder = Path(tempfile.mkdtemp(dir=shop.artifact_dir))
    try:
        yield replace(shop, artifact_dir=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def for_each_kind(options: TuneOptions) -> list[TuneOptions]:
    """Return the options for each kind of board of a job, with its trials shared among them; the first get the
    remainder.
    """
    count = len(options.selectors)
    shares = [
        None if options.trials is None else options.trials // count + (index < options.trials % count)
        for index in range(count)
    ]
    return [
        replace(options, selector=selector, also_on=(), trials=share)
        for selector, share in zip(options.selectors, shares, strict=True)
    ]
