"""Devices that an agent serves: opened at its start, taken in later, and placeholders replaced once theirs arrive."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from device_agents.driver import Driver
from device_agents.machine.pinning import OwnCpus
from device_agents.serving.attach import TrackerLink
from device_agents.serving.device import ServedDevice, TrialResult
from device_agents.serving.hook_notes import HookNotes
from device_agents.serving.idle_reference import IdleReference
from device_agents.serving.missing import MissingDevice
from device_agents.serving.poison import PoisonList
from device_agents.serving.run_notes import RunNotes
from device_agents.serving.sessions import SessionTable
from device_agents.serving.timing import Timing
from device_agents.workers.pool import WorkerPool
from fleet.errors import AlreadyExists, BuildError, DeviceError, DeviceMissing, FleetError

logger = logging.getLogger(__name__)

_MAY_HEAL = (DeviceMissing, DeviceError, BuildError)
"""Errors that may not recur on a later attempt. Others, such as a wrong configuration, keep the agent from starting."""


class Roster:
    """The devices of one agent."""

    def __init__(
        self,
        drivers: Sequence[Driver],
        pool: WorkerPool,
        own_cpus: OwnCpus,
        notes: HookNotes,
        poison: PoisonList,
        run_notes: RunNotes,
        timing: Timing,
        *,
        link: Callable[[], TrackerLink | None],
    ) -> None:
        """Args: link: returns the agent's stream to the tracker, once there is one."""
        self.drivers = list(drivers)
        self.devices: list[ServedDevice] = []
        self.idle: dict[str, IdleReference] = {}
        """By device name."""

        self.trials: Counter[TrialResult] = Counter()
        """Trials of all devices, gone ones too."""

        self.sessions: SessionTable | None = None
        """Sessions of the devices; None while the agent is being opened."""

        self._turns: dict[str, asyncio.Lock] = {}
        self._joining = asyncio.Lock()
        """Held while a later device is opened, so that two devices that appear at once cannot take the same name."""

        self._pool = pool
        self._own_cpus = own_cpus
        self._notes = notes
        self._poison = poison
        self._run_notes = run_notes
        self._timing = timing
        self._link = link

    @property
    def names(self) -> list[str]:
        """Names of the devices."""
        return [driver.name for driver in self.drivers]

    async def open_drivers(self) -> None:
        """Open all devices. A device that fails is listed as missing, as long as another one works.

        Raises:
            FleetError: all fail, or one fails for good.
        """
        failed: list[FleetError] = []
        for index, driver in enumerate(self.drivers):
            opened = self.drivers[index] = await self._opened(driver)
            if isinstance(opened, MissingDevice) and opened is not driver:
                if not isinstance(opened.error, _MAY_HEAL):
                    raise opened.error
                failed.append(opened.error)
        if failed and all(isinstance(driver, MissingDevice) for driver in self.drivers):
            raise failed[0]
        for absence in failed:
            logger.warning("a device cannot be opened", extra={"error": str(absence)})

    def keep_off_cpus(self, drivers: Iterable[Driver]) -> None:
        """Leave the processors of devices to their measurements."""
        self._own_cpus.keep_off(cpu for driver in drivers for cpu in driver.cpus)
        self._pool.default_cpus = self._own_cpus.for_others

    def serve(self) -> None:
        """Make the served devices of all drivers, once the pool is open."""
        self.devices.extend(self._serve(driver) for driver in self.drivers)
        for device in self.devices:
            device.is_agent_apart = self._own_cpus.is_apart and bool(device.driver.cpus)

    def watch(self) -> None:
        """Begin to watch all served devices."""
        for device in self.devices:
            self._watch(device)

    async def take_in(self, driver: Driver) -> None:
        """Serve another device. If one of its name is served, it is the same device, or needs another name."""
        async with self._joining:
            if driver.name in self.names:
                logger.warning("a device of this name is served already", extra={"device": driver.name})
                return
            opened = await self._opened(driver)
            if isinstance(opened, MissingDevice):
                logger.warning("a device cannot be opened", extra={"error": str(opened.error)})
            self._join(opened)

    async def look_for(self, missing: MissingDevice) -> None:
        """Serve the device of a placeholder if it has arrived.

        Raises:
            FleetError: it is not, or it cannot be served.
        """
        found = await asyncio.to_thread(missing.look)
        async with self._joining:
            others = {name for name in self.names if name != missing.name}
            fresh = [driver for driver in found if driver.name not in others]
            if found and not fresh:
                names = ", ".join(driver.name for driver in found)
                raise AlreadyExists(f"found {names}, which is served already; give one of them another 'name'")
            failed: list[MissingDevice] = []
            for driver in fresh:
                opened = await self._opened(driver)
                if isinstance(opened, MissingDevice):
                    failed.append(opened)
                    continue
                logger.info("device appeared", extra={"device": driver.name})
                self._leave(missing)
                self._join(opened)
            if missing.driver is not None and failed:
                raise failed[0].error
            for other in failed:
                # The device has a name now, and replaces its placeholder.
                self._leave(missing)
                self._join(other)

    async def stop(self) -> None:
        """End the background work of the devices. Idempotent."""
        await asyncio.gather(*(idle.close() for idle in self.idle.values()))
        await asyncio.gather(*(device.upkeep.close() for device in self.devices))

    async def close_drivers(self) -> None:
        """Release the devices, after the last worker. Idempotent."""
        for driver in self.drivers:
            await driver.close()

    async def _opened(self, driver: Driver) -> Driver:
        """Open a device; return a MissingDevice in its place if that fails."""
        driver.changed, driver.noticed = self._attach_anew, self._check_now
        try:
            await driver.open(self._pool)
        except FleetError as error:
            reason = error
        except OSError as error:
            reason = DeviceError(f"{driver.name}: it cannot be opened: {error}")
        else:
            return driver
        missing = MissingDevice.of_driver(driver, reason)
        await missing.open(self._pool)
        return missing

    def _join(self, driver: Driver) -> None:
        self.drivers.append(driver)
        if self.sessions is None:
            return  # the agent is being opened, and is about to serve all drivers
        self.keep_off_cpus([driver])
        device = self._serve(driver)
        self.sessions.add(device)
        self.devices.append(device)
        self._watch(device)
        self._attach_anew()

    def _leave(self, missing: MissingDevice) -> None:
        """Stop serving a device without closing it: a report may be in progress that uses its driver. Idempotent."""
        if not any(driver is missing for driver in self.drivers):
            return
        self.drivers[:] = [driver for driver in self.drivers if driver is not missing]
        for device in self.devices:
            if device.driver is missing:
                device.upkeep.stop()
                self.idle.pop(device.name).stop()
        self.devices[:] = [device for device in self.devices if device.driver is not missing]
        if self.sessions is not None:
            self.sessions.remove(missing.name)

    def _serve(self, driver: Driver) -> ServedDevice:
        turn = self._turns.setdefault(driver.resource, asyncio.Lock())
        device = ServedDevice(
            driver,
            turn,
            lambda: self._pool.fault,
            self._notes,
            self._poison,
            self._run_notes,
            self._timing,
            self.trials,
        )
        device.idle_work = self.idle[driver.name] = IdleReference(device, self._pool, self._attach_count, self._timing)
        return device

    def _watch(self, device: ServedDevice) -> None:
        device.watch()
        self.idle[device.name].start()

    def _attach_count(self) -> int:
        link = self._link()
        return link.attach_count if link is not None else 0

    def _attach_anew(self) -> None:
        link = self._link()
        if link is not None:
            link.attach_anew()

    def _check_now(self) -> None:
        link = self._link()
        if link is not None:
            link.check_now()
