"""One device of an agent: its driver, its counters, and its current user."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from device_agents.driver import Driver, Health
from device_agents.measuring.reference import ReferenceTimes
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.hook_run import LeaseNames
from device_agents.serving.poison import PoisonList, Suspicion
from device_agents.serving.run_notes import RunNotes
from device_agents.serving.timing import USUAL, Timing
from device_agents.serving.upkeep import Upkeep
from device_agents.workers.handle import WorkerHandle
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.measuring import ErrorKind
from fleet.wire.devices import inventory_to_proto, telemetry_to_proto

logger = logging.getLogger(__name__)

_FRESH_SEC = 0.02
"""A reading this young is reused: the one after a candidate serves as the one before the next."""

_RATE_WINDOW_SEC = 60.0

TrialResult: TypeAlias = tuple[str, ErrorKind | None]
"""Kind of the device, and the error; None: the candidate was timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReport:
    """Current state of a device."""

    device_name: str
    health: Health
    telemetry: Telemetry
    bitstream_digest: str = ""


class IdleWork(Protocol):
    """Work on the device between leases."""

    async def pause(self) -> None:
        """Stop the work before a lease begins."""

    def resume(self) -> None:
        """Allow the work again after a lease."""


class NoIdleWork:
    """Nothing is done between leases."""

    async def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""


@dataclass(slots=True)
class Run:
    """One run of a program."""

    is_failed: bool = True
    """Until it is known to have done well."""


class ServedDevice:
    """A device of this agent."""

    def __init__(
        self,
        driver: Driver,
        turn: asyncio.Lock,
        fault: Callable[[], str] = lambda: "",
        notes: HookNotes | None = None,
        poison: PoisonList | None = None,
        run_notes: RunNotes | None = None,
        timing: Timing = USUAL,
        trials: Counter[TrialResult] | None = None,
    ) -> None:
        """Args:
        fault: returns why no worker can be started; empty if one can.
        notes: of the agent's hooks.
        poison: programs that the agent refuses.
        run_notes: of the programs that run.
        trials: counts the trials of all devices by result.
        """
        self.driver = driver
        self.poison = poison or PoisonList()
        self._run_notes = run_notes or RunNotes()
        self._suspicion = Suspicion()
        self.idle_work: IdleWork = NoIdleWork()
        self.upkeep = Upkeep(driver.name, driver.hooks, notes, timing=timing)
        self._fault = fault
        self.turn = turn
        """Held while a candidate runs; shared by the devices that share a resource."""

        self.reference = ReferenceTimes(driver.reference_limit, is_costly=driver.serves_one_worker)
        self.is_agent_apart = False
        """True if the agent runs on other processors than the kernels."""

        self._killed: list[WorkerHandle] = []
        """Recently killed workers. The device takes no lease until all of them are gone."""

        self._described: Inventory | None = None
        self._quiet = asyncio.Lock()
        self._logged_errors: set[str] = set()
        self._trials = 0
        self._trial_counts: Counter[TrialResult] = Counter() if trials is None else trials
        self._trial_times: deque[float] = deque()
        self._last_error = ""
        self._reading: Telemetry | None = None
        self._read_at_sec = 0.0

    @property
    def name(self) -> str:
        return self.driver.name

    def inventory(self) -> Inventory | None:
        """Return the last valid inventory, or None if the driver has never produced one."""
        try:
            inventory = self.driver.inventory()
            inventory_to_proto(inventory)
        except Exception as error:  # noqa: BLE001 - a driver may be anybody's: it costs its own device, not the others
            self._complaint(error)
        else:
            self._described = inventory
        return self._described

    def note_killed(self, worker: WorkerHandle) -> None:
        """Record a killed worker, which blocks the device while it hangs in the kernel."""
        self._killed = [*(killed for killed in self._killed if killed.is_stuck), worker]

    @property
    def is_well(self) -> bool:
        """True if the device was healthy when it was probed last."""
        return self._suspicion.is_healthy and not self.upkeep.fault

    @property
    def recoveries(self) -> int:
        """Number of times that the device became healthy again."""
        return self._suspicion.recoveries + self.upkeep.recoveries

    async def begin_lease(self, lease: LeaseNames) -> None:
        """End idle work, and run the owner's hook.

        Raises:
            DeviceFaulted: the hook failed.
        """
        await self.idle_work.pause()
        await self.upkeep.begin_lease(lease)

    def end_lease(self) -> None:
        """Allow idle work again, and run the owner's hook in the background."""
        self.idle_work.resume()
        self.upkeep.end_lease()

    def watch(self) -> None:
        """Start the upkeep of the device."""
        self.upkeep.watch(self._own_health, lambda: self.turn)

    def accepts(self, worker: WorkerHandle) -> bool:
        """Tell whether the device is still as the worker found it at its start."""
        return self.driver.is_prepared and worker.device_cycles == self.upkeep.cycles

    @property
    def arch(self) -> str:
        """Architecture of its artifacts; "unknown" until the driver knows it."""
        described = self._as_described()
        return described.labels["arch"] if described is not None else "unknown"

    @property
    def is_simulated(self) -> bool:
        """True if times are simulated, so that nothing can disturb them."""
        described = self._as_described()
        return described is not None and described.is_simulated

    @property
    def bitstream_digest(self) -> str:
        """Digest of the bitstream loaded last; empty: none, or unknown."""
        return self.driver.fabric.digest if self.driver.fabric is not None else ""

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold back the agent's own heavier work, see `own_work`, while a candidate runs."""
        async with self._quiet:
            yield

    @asynccontextmanager
    async def own_work(self) -> AsyncIterator[None]:
        """Do some milliseconds of the agent's own work, such as hashing an upload, while no candidate runs."""
        if self.is_agent_apart:
            yield
            return
        async with self._quiet:
            yield

    async def read_temp_c(self) -> float | None:
        """Return the device's current temperature; None if it has no sensor."""
        return (await self._telemetry()).temp_c

    @asynccontextmanager
    async def running(self, digest: str, worker: WorkerHandle) -> AsyncIterator[Run]:
        """Blame a program if the device turns unhealthy inside the block, or soon after it failed."""
        await self._run_notes.begin(self.name, digest)
        self._suspicion.begin(digest)
        run = Run()
        try:
            yield run
        finally:
            self._run_notes.end(self.name)
            self._suspicion.end(is_failed=run.is_failed)
        if run.is_failed:
            if worker.is_stuck:
                self.note_killed(worker)  # now, or the next program would be blamed
            await self.health()

    def learn(self, error: ErrorKind | None, message: str) -> None:
        """Record a trial's outcome; `error` is None if it was timed."""
        self._trials += 1
        self._trial_counts[self.driver.kind, error] += 1
        self._trial_times.append(time.monotonic())
        if message:
            self._last_error = message
        self.driver.learn(error, message)

    async def readings(self) -> Telemetry:
        """Return current readings, with the counts of trials."""
        now = time.monotonic()
        if self._reading is None or now - self._read_at_sec > _FRESH_SEC:
            self._reading = await self._telemetry()
            self._read_at_sec = now
        while self._trial_times and self._trial_times[0] < now - _RATE_WINDOW_SEC:
            self._trial_times.popleft()
        return replace(
            self._reading,
            trials=self._trials,
            trials_per_min=float(len(self._trial_times)),
            last_error=self._last_error,
            reference_sec=self.reference.current_sec(now),
        )

    async def health(self) -> Health:
        """Tell whether the device can take a lease."""
        fault = self._fault()
        return Health(is_healthy=False, reason=fault) if fault else await self._own_health()

    async def _own_health(self) -> Health:
        health = await self._board_health()
        if digest := self._suspicion.note_health(is_healthy=health.is_healthy):
            self.poison.blame(digest, self.name, may_be_chance=self.driver.may_be_unplugged)
        if health.is_healthy and (fault := self.upkeep.fault):
            return Health(is_healthy=False, reason=fault)
        return health

    async def _board_health(self) -> Health:
        if stuck := self._stuck_worker():
            return Health(is_healthy=False, reason=stuck)
        try:
            return await self.driver.probe()
        except Exception as error:  # noqa: BLE001 - see above
            return Health(is_healthy=False, reason=self._complaint(error))

    def _as_described(self) -> Inventory | None:
        """Return the inventory sent last. Cached: making one takes a millisecond."""
        return self._described or self.inventory()

    async def _telemetry(self) -> Telemetry:
        try:
            telemetry = await self.driver.telemetry()
            telemetry_to_proto(telemetry)
        except Exception as error:  # noqa: BLE001 - see above; a lease goes on without readings
            self._complaint(error)
            return Telemetry(read_at_sec=time.time())
        return telemetry

    def _complaint(self, error: Exception) -> str:
        """Return the driver's failure as text; log its traceback once for each kind of error."""
        kind = type(error).__name__
        if kind not in self._logged_errors:
            self._logged_errors.add(kind)
            logger.error("a driver failed", extra={"device": self.name}, exc_info=error)
        return f"its driver failed: {kind}: {error}"

    def _stuck_worker(self) -> str:
        stuck = next((worker for worker in self._killed if worker.is_stuck), None)
        if stuck is None:
            return ""
        why = f" ({stuck.why_stuck})" if stuck.why_stuck else ""
        return (
            f"worker {stuck.pid} cannot be killed: it hangs in the kernel{why}, as with a driver that does not "
            "answer; reset the hardware, or restart the machine"
        )

    async def report(self) -> DeviceReport:
        """Return the report for the tracker."""
        return DeviceReport(
            device_name=self.name,
            health=await self.health(),
            telemetry=await self.readings(),
            bitstream_digest=self.bitstream_digest,
        )
