"""One device while its agent serves it: the driver, what was counted, and who is using it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cached_property

from device_agents.driver import Driver, Health
from device_agents.reference import Reference
from device_agents.worker_handle import WorkerHandle
from fleet.v1 import agent_service_pb2, device_pb2

_FRESH_SEC = 0.02
"""A reading this young is taken again for free: the one after a candidate is the one before the next."""

_RATE_WINDOW_SEC = 60.0


class ServedDevice:
    """A device of this agent."""

    def __init__(self, driver: Driver, turn: asyncio.Lock, fault: Callable[[], str] = lambda: "") -> None:
        """Args:
        fault: tells why no worker can be started, or nothing.
        """
        self.driver = driver
        self._fault = fault
        self.turn = turn
        """Held while a candidate runs; shared by the devices that share a resource."""

        self.reference = Reference(driver.reference_limit)
        self.is_agent_apart = False
        """The agent itself has other processors than the kernels."""

        self.killed: WorkerHandle | None = None
        """The worker that was to end last; while it does not, the device takes no lease."""

        self._quiet = asyncio.Lock()
        self._trials = 0
        self._trial_times: deque[float] = deque()
        self._last_error = ""
        self._reading: device_pb2.Telemetry | None = None
        self._read_at_sec = 0.0

    @property
    def name(self) -> str:
        return self.driver.name

    @cached_property
    def arch(self) -> str:
        """Architecture that its artifacts are built for. Kept: an inventory takes a millisecond to make."""
        return self.driver.inventory().labels["arch"]

    @cached_property
    def is_simulated(self) -> bool:
        """Its times say nothing about hardware, so that nothing can speak against them."""
        return self.driver.inventory().is_simulated

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Keep the agent's own heavier work away: see `own_work`. Held around a candidate's run."""
        async with self._quiet:
            yield

    @asynccontextmanager
    async def own_work(self) -> AsyncIterator[None]:
        """Do some milliseconds of the agent's own work, as hashing an upload, between candidates and not beside one."""
        if self.is_agent_apart:
            yield
            return
        async with self._quiet:
            yield

    async def read_temp_c(self) -> float | None:
        """Return how warm the device is now; None where nothing tells."""
        telemetry = await self.driver.telemetry()
        return telemetry.temp_c if telemetry.HasField("temp_c") else None

    def count_trial(self, error: str) -> None:
        """Learn that a trial ended; `error` is empty when it gave a time."""
        self._trials += 1
        self._trial_times.append(time.monotonic())
        if error:
            self._last_error = error
        self.driver.count_trial()

    async def readings(self) -> device_pb2.Telemetry:
        """Return readings of this moment and the counts."""
        now = time.monotonic()
        if self._reading is None or now - self._read_at_sec > _FRESH_SEC:
            self._reading = await self.driver.telemetry()
            self._read_at_sec = now
        while self._trial_times and self._trial_times[0] < now - _RATE_WINDOW_SEC:
            self._trial_times.popleft()
        self._reading.trials = self._trials
        self._reading.trials_per_min = float(len(self._trial_times))
        self._reading.last_error = self._last_error
        reference_sec = self.reference.current_sec(now)
        if reference_sec is not None:
            self._reading.reference_sec = reference_sec
        return self._reading

    async def health(self) -> Health:
        """Tell whether the device can take a lease."""
        fault = self._fault() or self._stuck_worker()
        return Health(is_healthy=False, reason=fault) if fault else await self.driver.probe()

    def _stuck_worker(self) -> str:
        if self.killed is None or not self.killed.is_stuck:
            return ""
        return (
            f"worker {self.killed.pid} cannot be killed: it hangs in the kernel, as with a driver that does not "
            "answer; reset the hardware, or restart the machine"
        )

    async def report(self) -> agent_service_pb2.DeviceReport:
        """Return what the tracker wants to know."""
        health = await self.health()
        return agent_service_pb2.DeviceReport(
            device_name=self.name,
            telemetry=await self.readings(),
            is_healthy=health.is_healthy,
            reason=health.reason,
            bitstream_digest=self.driver.bitstream_digest,
        )
