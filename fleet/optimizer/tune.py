"""One tuning run from a model file to a report: opens and connects the components of the job.

Without a tracker's address, a fleet for this machine is started as child processes and stopped at the end. TVM never
runs in this process: import, extraction, search and builds are tasks of the pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cross.pool.build_pool import BuildPool
from cross.targets.intrinsics import target_hint
from cross.targets.target import Target, parse_target
from fleet import aio
from fleet.base.scratch import scratch_dir
from fleet.building import MODULES
from fleet.building.machine_turns import MachineTurns
from fleet.building.pool import run_within
from fleet.building.turns import Cores, Turns, stepped_aside
from fleet.client.aio import Fleet
from fleet.client.steady import SteadyDevice, alike
from fleet.domain.bookings import notice_text
from fleet.domain.leases import LeaseClass, PendingRequest, make_terms
from fleet.domain.selectors import ANY, Selector, parse_selector
from fleet.domain.tvm_versions import check_versions
from fleet.errors import FleetError
from fleet.fragments.extracted import Extracted, extracted
from fleet.jobs.entry import JobEntry, OwnEntry
from fleet.jobs.fleets import asked_again
from fleet.jobs.options import TuneOptions
from fleet.jobs.report import TuneReport
from fleet.library import JobState, Library
from fleet.local.fleet import LocalFleet, drivers_for
from fleet.models.confined import having, reading
from fleet.models.model import Model, ModelFormat, check_exists, load_model
from fleet.optimizer.core.progress import JobProgress, Phase
from fleet.optimizer.core.state import JobCore
from fleet.optimizer.job_run import JobRun
from fleet.optimizer.learning import learning
from fleet.optimizer.loop import SHORT_WORK_BID
from fleet.optimizer.target_check import check_device
from fleet.optimizer.workloads_alone import workloads_alone
from fleet.optimizer.workshop import Workshop, open_builders
from fleet.workloads.extract import is_worth_keeping

_IMPORT_TIMEOUT_SEC = 600.0


async def tune(options: TuneOptions, progress: JobProgress, *, started_at: float) -> TuneReport:
    """Run one job.

    Args:
        progress: updated while the job runs.
        started_at: time.monotonic() at the start of the process; reported times count from here.

    Raises:
        LibraryReadOnly: results could not be stored; nothing was started.
        FleetError: the job failed; all finished trials are in the library.
        asyncio.CancelledError: the same, and the job is INTERRUPTED.
    """
    check_versions()
    check_exists(options.model, takes_programs=True)
    async with AsyncExitStack() as stack:
        library = stack.enter_context(await asyncio.to_thread(Library.open, options.library))
        await asyncio.to_thread(library.check_writable)
        # Opened before the pool, so that it is removed after the last build that writes into it.
        artifact_dir = stack.enter_context(scratch_dir("artifacts"))
        wanted = options.target or target_hint(parse_selector(options.selector).kind)
        pool = BuildPool(options.workers, timeout_sec=options.build_timeout_sec, target=wanted, modules=MODULES)
        # Do not wait: tasks that still run at the end are not needed, and a model may compile for minutes.
        stack.callback(pool.shutdown, wait=False)
        pool.start()
        builders = await open_builders(stack, pool, options.cluster, build_timeout_sec=options.build_timeout_sec)
        cores = Cores(MachineTurns.of_this_machine())
        shop = Workshop(
            library=library,
            pool=pool,
            builders=builders,
            artifact_dir=artifact_dir,
            cores=cores,
            cache=options.build_cache,
        )
        await stack.enter_async_context(learning(library, builders, Turns(shares_cores=True, cores=cores)))
        entry, core = OwnEntry(library), JobCore(progress)
        opening = OpenJob(options=options, core=core, shop=shop, entry=entry, started_at=started_at)
        state, message = JobState.FAILED, "ended by an error"
        try:
            report = await opening.run()
            await entry.finish(report)
            state = JobState.FINISHED
        except asyncio.CancelledError:
            state, message = JobState.INTERRUPTED, "stopped by its user"
            raise
        except FleetError as error:
            message = str(error)
            raise
        finally:
            if state is not JobState.FINISHED:
                entry.end(state, message)
        return report


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """Opens the components of a run in order, runs it, and closes them."""

    options: TuneOptions
    core: JobCore
    shop: Workshop
    entry: JobEntry
    started_at: float
    notices: Sequence[str] = ()
    """Messages shown to the user so far."""
    account: str = ""
    """Account that requests for devices count for; "": the client's own."""

    async def run(self) -> TuneReport:
        """Open everything, and run the job.

        Raises:
            FleetError, asyncio.CancelledError: see `tune`.
        """
        self.core.set_title(self.options.title)
        async with AsyncExitStack() as stack:
            self._say(f"importing {self.options.model.name}")
            folder = stack.enter_context(scratch_dir("model"))
            importing = asyncio.create_task(self._import(folder), name="import model")
            connecting = asyncio.create_task(self._connect(stack), name="connect")
            parts: set[asyncio.Task[tuple[Model, Extracted | None]] | asyncio.Task[Fleet]]
            parts = {importing, connecting}
            try:
                # The first error ends the run: neither waits for the other, which may take minutes.
                ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_EXCEPTION)
                for part in ended:
                    part.result()
            finally:
                for part in parts:
                    part.cancel()
                await asyncio.gather(*parts, return_exceptions=True)
            (model, found), client = importing.result(), connecting.result()
            self._say(f"waiting for a device: {self.options.selector}", Phase.DEVICE)
            steady = await stack.enter_async_context(self._steady_device(client))
            device = await steady.device()
            inventory = device.inventory
            if self.options.target is not None:
                check_device(self.options.target, inventory, device_name=device.name)
            self.core.use_device(device.name, inventory.device_model)
            others = [
                await stack.enter_async_context(self._steady_device(client, alike(device)))
                for _ in range(self.options.devices - 1)
            ]
            if self._gives_back:
                await steady.give_back()
            target = self.options.target or parse_target(inventory.target_json)
            if found is None:
                self._say("finding the workloads", Phase.WORKLOADS)
                found = await self._extract(model, target)
            job = JobRun(
                options=self.options,
                core=self.core,
                shop=self.shop,
                client=client,
                device=steady,
                others=others,
                inventory=inventory,
                model=model,
                extracted=found,
                target=target,
                started_at=self.started_at,
                entry=self.entry,
                notices=self.notices,
                gives_back=self._gives_back,
            )
            return await job.run()

    @property
    def _gives_back(self) -> bool:
        """True if others may need the device while this job only searches: not if the fleet is its own."""
        return self.shop.client is not None or self.options.tracker is not None

    async def _connect(self, stack: AsyncExitStack) -> Fleet:
        client = self.shop.client or await self._connect_anew(stack)
        # The import may take minutes, and need not begin.
        question = partial(client.check_selector, self.options.selector)
        await asked_again(question, within_sec=self.options.connect_timeout_sec)
        return client

    async def _connect_anew(self, stack: AsyncExitStack) -> Fleet:
        address = self.options.tracker
        if address is None:
            self._say("starting a tracker and an agent for this machine", Phase.DEVICE)
            drivers = drivers_for(self.options.selector)
            local = await stack.enter_async_context(
                LocalFleet(agent_drivers=drivers, restarts=True, on_change=self.core.progress.notice)
            )
            address = local.address
        connecting = aio.connect(address, connect_timeout_sec=self.options.connect_timeout_sec)
        client = await stack.enter_async_context(connecting)
        client.watch_bookings(lambda booking: self.core.progress.notice(notice_text(booking, time.time())))
        return client

    def _steady_device(self, client: Fleet, within: Selector = ANY) -> SteadyDevice:
        options = self.options

        def on_queued(pending: PendingRequest) -> None:
            place = f"{pending.position} before us" if pending.position else "next in the queue"
            self._say(f"waiting for a device, {place}: {pending.reason}")

        terms = make_terms(
            options.selector,
            lease_class=LeaseClass.BATCH,
            priority=options.priority,
            wait_timeout_sec=options.wait_timeout_sec,
            purpose=f"tune {options.model.name}",
            account=self.account,
            bid=SHORT_WORK_BID,
        )
        return SteadyDevice(
            client,
            terms.within(within),
            courier=self.shop.courier,
            notice=self.core.progress.notice,
            on_queued=on_queued,
            aside=stepped_aside,
        )

    async def _import(self, folder: Path) -> tuple[Model, Extracted | None]:
        """Import the model, and extract its workloads unless the device has to report its target first."""
        model, target = await self._import_model(folder), self.options.target
        return model, None if target is None else await self._extract(model, target)

    async def _extract(self, model: Model, target: Target) -> Extracted:
        async with Turns(shares_cores=True, cores=self.shop.cores).building():
            if model.format is ModelFormat.WORKLOADS:
                return await workloads_alone(self.shop.pool, model, target, notice=self.core.progress.notice)
            is_kept = self.options.compares_model and is_worth_keeping(model)
            return await run_within(
                self.shop.pool,
                _IMPORT_TIMEOUT_SEC,
                having(extracted, model),
                model,
                target,
                is_compiled_next=is_kept,
            )

    async def _import_model(self, folder: Path) -> Model:
        seed = self.options.seed if self.options.random_weights else None
        async with Turns(shares_cores=True, cores=self.shop.cores).building():
            model = await run_within(
                self.shop.pool,
                _IMPORT_TIMEOUT_SEC,
                reading(load_model, self.options.model),
                self.options.model,
                shapes=self.options.shapes,
                batch_size=self.options.input_batch_size,
                random_weights_seed=seed,
            )
            return await asyncio.to_thread(model.stored_in, folder)

    def _say(self, activity: str, phase: Phase | None = None) -> None:
        self.core.say(activity, phase)
