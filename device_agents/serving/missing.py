"""Devices of agent.yaml that are absent. They are listed as faulted, with the reason, until they appear.

A kernel module that loads after the agent started, or a vendor's driver that is being replaced, must not take down a
machine's other devices, nor require a restart of the agent: once a device is here, it replaces its placeholder.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain, count
from typing import Self

from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.machine.host import read_host
from device_agents.serving.timing import Timing
from fleet.domain.devices import Inventory, Telemetry
from fleet.errors import DeviceFaulted, FleetError

logger = logging.getLogger(__name__)


class MissingDevice(Driver):
    """Placeholder for an entry of agent.yaml, or for one of its devices, while it is absent.

    Nothing is preloaded for an entry with unknown devices: a runtime that cannot be loaded would keep the
    other devices from being served. When they come, each of their workers loads its own.
    """

    def __init__(
        self, device_id: str, kind: str, error: FleetError, *, where: str, look: Callable[[], Sequence[Driver]]
    ) -> None:
        """Args:
        where: prefix of the error messages, which the reason omits.
        look: makes drivers, not yet open, for the devices present; raises a FleetError if there are none. Called in a
            thread.
        """
        super().__init__(device_id)
        self.kind = kind
        self.error = error
        """Why the device is absent, as of the last search."""

        self.look = look
        self.driver: Driver | None = None
        """Driver of the absent device, which each search tries to open; None for an entry with unnamed devices."""

        self._where = where

    @classmethod
    def of_entry(
        cls,
        entry: Mapping[str, object],
        error: FleetError,
        *,
        where: str,
        look: Callable[[], Sequence[Driver]],
        host_name: str,
        taken: Collection[str],
    ) -> MissingDevice:
        """Return a placeholder for an entry with unknown devices.

        Args:
            taken: names that it must not use.
        """
        kind = str(entry["driver"])
        base = f"{host_name}-{re.sub(r'[^A-Za-z0-9._-]', '-', kind)}"
        names = chain([base], (f"{base}-{number}" for number in count(1)))
        device_id = str(entry.get("name") or next(name for name in names if name not in taken))
        return cls(device_id, kind, error, where=where, look=look)

    @classmethod
    def of_driver(cls, driver: Driver, error: FleetError) -> MissingDevice:
        """Return a placeholder for a device that could not be opened."""
        missing = cls(driver.device_id, driver.kind, error, where=driver.name, look=lambda: [driver])
        missing.driver, missing.hooks = driver, driver.hooks
        return missing

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        """Return an empty list: no configuration names a missing device."""
        return []

    @property
    def reason(self) -> str:
        """Why the device is absent."""
        return f"{str(self.error).removeprefix(f'{self._where}: ')} (it is looked for again without a restart)"

    async def close(self) -> None:
        await super().close()
        if self.driver is not None:
            await self.driver.close()

    def _probe(self) -> Health:
        return Health(is_healthy=False, reason=self.reason)

    def _inventory(self) -> Inventory:
        host = read_host()
        return Inventory(
            kind=self.kind,
            labels={"arch": host.arch, "missing": "true"},
            target_json='{"kind": "llvm"}',
            device_model="not found",
            core_count=1,
            host_fingerprint=host.fingerprint,
        )

    def _worker_spec(self) -> WorkerSpec:
        raise DeviceFaulted(f"{self.name}: {self.reason}")

    def _telemetry(self) -> Telemetry:
        return Telemetry(read_at_sec=time.time())


class Search:
    """Searches for the missing devices of an agent, one after the other."""

    def __init__(
        self, drivers: Sequence[Driver], look_for: Callable[[MissingDevice], Awaitable[None]], timing: Timing
    ) -> None:
        """Args:
        drivers: returns the agent's current drivers.
        look_for: serves the device if it is here; raises a FleetError while it is still missing.
        """
        self._drivers = drivers
        self._look_for = look_for
        self._timing = timing
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start searching."""
        self._task = asyncio.create_task(self._run(), name="look-for-missing")

    async def close(self) -> None:
        """Stop searching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        took_sec = 0.0
        while True:
            await asyncio.sleep(max(self._timing.search_pause_sec, took_sec / self._timing.search_share))
            began_sec = time.monotonic()
            for missing in [driver for driver in self._drivers if isinstance(driver, MissingDevice)]:
                try:
                    await self._look_for(missing)
                except FleetError as error:
                    missing.error = error
                except Exception:  # outermost loop of this task: the search continues
                    logger.exception("looking for a missing device failed", extra={"device": missing.name})
            took_sec = time.monotonic() - began_sec
