"""Runs the reference kernel of a device while it is idle, so that the tracker can compare it with its siblings.

A session that begins ends a run in progress first: a lease waits no longer than for the end of that worker.
Simulated devices are left out, since their times are made up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from device_agents.measuring.idle_schedule import IdleSchedule
from device_agents.serving.device import ServedDevice
from device_agents.serving.referee import Referee
from device_agents.serving.timing import USUAL, Timing
from device_agents.serving.worker_slot import WorkerSlot
from device_agents.workers.handle import WorkerHandle
from device_agents.workers.pool import WorkerPool
from fleet.errors import FleetError

logger = logging.getLogger(__name__)


class IdleReference:
    """Runs the reference kernel while one device is idle."""

    def __init__(
        self, device: ServedDevice, pool: WorkerPool, attachments: Callable[[], int], timing: Timing = USUAL
    ) -> None:
        """Args: attachments: returns the number of times that the agent was attached to its tracker."""
        self._device = device
        self._pool = pool
        self._attachments = attachments
        self._timing = timing
        self._schedule = IdleSchedule(timing.reference_series_sec)
        self._slot = WorkerSlot(self._start_worker, lambda: None, device.note_killed)
        self._referee = Referee(device, self._slot, self._slot)
        self._occasions = (0, 0)
        self._watching: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for occasions, unless the device is simulated."""
        if not self._device.is_simulated:
            self._watching = asyncio.create_task(self._watch(), name=f"idle-reference-{self._device.name}")

    async def close(self) -> None:
        """End, with any run in progress. Idempotent."""
        self.stop()
        if self._watching is not None:
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._end_run()

    def stop(self) -> None:
        """Begin no run any more. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()

    async def pause(self) -> None:
        """Run nothing from now on; return once no run is in progress."""
        self._schedule.lease()
        await self._end_run()

    def resume(self) -> None:
        """Resume the runs after a pause."""
        self._schedule.release(time.monotonic())

    async def _end_run(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._timing.health_sec)
            now_sec = time.monotonic()
            occasions = (self._attachments(), self._device.recoveries)
            if occasions != self._occasions:
                self._occasions = occasions
                self._schedule.begin(now_sec)
            if self._device.is_well and self._schedule.is_due(now_sec):
                self._schedule.note_run()
                self._running = asyncio.create_task(self._run(), name=f"reference-{self._device.name}")
                await asyncio.wait((self._running,))

    async def _run(self) -> None:
        try:
            await self._referee.warm_up()
            async with self._device.turn, self._device.quiet():
                await self._referee.run(is_wanted=True)
        except (FleetError, OSError) as error:
            logger.info("no reference of an idle device", extra={"device": self._device.name, "error": str(error)})
        finally:
            await self._slot.empty()

    async def _start_worker(self) -> WorkerHandle:
        driver = self._device.driver
        await driver.prepare()
        cycles = self._device.upkeep.cycles
        worker = await self._pool.start_worker(driver.reference_spec(), lambda _: None)
        worker.device_cycles = cycles
        return worker
