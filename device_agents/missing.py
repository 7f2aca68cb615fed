"""Devices that agent.yaml asks for and that are not here: shown as faulted with the reason, and looked for again.

A kernel module that loads after the agent started, or a vendor's driver that is being replaced, must not take a
machine's other devices away, and needs nobody who restarts the agent: what comes is served in the place of what stood
for it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any

from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.host import read_host
from fleet.errors import DeviceFaulted, FleetError
from fleet.v1 import device_pb2

logger = logging.getLogger(__name__)

_PAUSE_SEC = 30.0
_LARGEST_SHARE = 0.05
"""Of all time that may be spent looking: a look can start a process, and a compiler, on cores that are measured."""


class MissingDevice(Driver):
    """Stands for one entry of agent.yaml, or for one device of it, until that is here.

    An entry whose devices cannot be named has nothing preloaded: a runtime that cannot be loaded would keep the others
    from being served. Each worker of what comes then loads its own.
    """

    def __init__(
        self, device_id: str, kind: str, error: FleetError, *, where: str, look: Callable[[], Sequence[Driver]]
    ) -> None:
        """Args:
        where: what the messages of errors begin with; the reason does without.
        look: makes the drivers, not yet open, of what is here now; raises a FleetError when that is nothing. Called in
            a thread.
        """
        super().__init__(device_id)
        self.kind = kind
        self.error = error
        """Why it is not here, as of the last look."""

        self.look = look
        self.driver: Driver | None = None
        """The one device that it stands for, opened with each look; None: an entry, whose devices have no names yet."""

        self._where = where

    @classmethod
    def of_entry(
        cls,
        entry: Mapping[str, Any],
        error: FleetError,
        *,
        where: str,
        look: Callable[[], Sequence[Driver]],
        host_name: str,
        taken: Collection[str],
    ) -> MissingDevice:
        """Return what stands for an entry whose devices could not even be named.

        Args:
            taken: names that it must not have.
        """
        kind = str(entry["driver"])
        base = f"{host_name}-{re.sub(r'[^A-Za-z0-9._-]', '-', kind)}"
        names = chain([base], (f"{base}-{number}" for number in count(1)))
        device_id = str(entry.get("name") or next(name for name in names if name not in taken))
        return cls(device_id, kind, error, where=where, look=look)

    @classmethod
    def of_driver(cls, driver: Driver, error: FleetError) -> MissingDevice:
        """Return what stands for a device that could not be opened."""
        missing = cls(driver.device_id, driver.kind, error, where=driver.name, look=lambda: [driver])
        missing.driver = driver
        return missing

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Any]:
        """Nobody asks for a device that is missing."""
        return []

    @property
    def reason(self) -> str:
        """Why it is not here."""
        return f"{str(self.error).removeprefix(f'{self._where}: ')} (it is looked for again without a restart)"

    async def close(self) -> None:
        await super().close()
        if self.driver is not None:
            await self.driver.close()

    def _probe(self) -> Health:
        return Health(is_healthy=False, reason=self.reason)

    def _inventory(self) -> device_pb2.Inventory:
        host = read_host()
        return device_pb2.Inventory(
            kind=self.kind,
            labels={"arch": host.arch, "missing": "true"},
            target_json='{"kind": "llvm"}',
            device_model="not found",
            core_count=1,
            host_fingerprint=host.fingerprint,
        )

    def _worker_spec(self) -> WorkerSpec:
        raise DeviceFaulted(f"{self.name}: {self.reason}")

    def _telemetry(self) -> device_pb2.Telemetry:
        return device_pb2.Telemetry()


class Search:
    """Looks for the missing devices of an agent, one after the other."""

    def __init__(self, drivers: Sequence[Driver], look_for: Callable[[MissingDevice], Awaitable[None]]) -> None:
        """Args:
        drivers: all of the agent, as they are from time to time.
        look_for: serves what is here; raises a FleetError when the device is still missing.
        """
        self._drivers = drivers
        self._look_for = look_for
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="look-for-missing")

    async def close(self) -> None:
        """End it. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        took_sec = 0.0
        while True:
            await asyncio.sleep(max(_PAUSE_SEC, took_sec / _LARGEST_SHARE))
            began_sec = time.monotonic()
            for missing in [driver for driver in self._drivers if isinstance(driver, MissingDevice)]:
                try:
                    await self._look_for(missing)
                except FleetError as error:
                    missing.error = error
                except Exception:  # outermost loop of this task: it goes on looking
                    logger.exception("looking for a missing device failed", extra={"device": missing.name})
            took_sec = time.monotonic() - began_sec
