"""Blocking access to a leased device: see `fleet.client.sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable
from pathlib import Path

from fleet.artifacts.artifact import Artifact
from fleet.client import device as aio_device
from fleet.client import remote as aio_remote
from fleet.client.blocking import Blocking, blocking, documented_as
from fleet.domain.devices import Inventory
from fleet.domain.leases import Lease, YieldWanted
from fleet.domain.measuring import Measurement, Trial
from fleet.errors import FleetError


class Device(Blocking[aio_device.Device]):
    """One device under one lease. Made by `Fleet.acquire`, used from any thread."""

    @property
    def name(self) -> str:
        """ "devices/<id>"."""
        return self._inner.name

    @property
    def address(self) -> str:
        """ "host:port" of its agent."""
        return self._inner.address

    @property
    def inventory(self) -> Inventory:
        """Inventory of the hardware."""
        return self._inner.inventory

    @property
    def lease(self) -> Lease:
        """The lease as the tracker last reported it."""
        return self._inner.lease

    @property
    def token(self) -> bytes:
        """The newest token, as it travels."""
        return self._inner.token

    @property
    def ended(self) -> FleetError | None:
        """Why the lease is over; None while it lives."""
        return self._inner.ended

    @property
    def yield_wanted(self) -> YieldWanted | None:
        """Demand to give the device back at the next border between batches, if the tracker made one."""
        return self._inner.yield_wanted

    @property
    def outbid(self) -> float:
        """Highest bid of the account's own requests that waited for the device since the grant; 0: none did."""
        return self._inner.outbid

    @property
    def is_busy(self) -> bool:
        """True if a call of this process is under way."""
        return self._inner.is_busy

    open = blocking(aio_device.Device.open)
    ensure = blocking(aio_device.Device.ensure)

    @documented_as(aio_device.Device.measure)
    def measure(self, trials: Iterable[Trial]) -> Generator[Measurement, None, None]:
        # An iterable that is not a list may be slow: it is read on a thread.
        source = trials if isinstance(trials, list | tuple) else _read_on_thread(trials)
        return self._thread.pull(self._inner.measure(source))

    time = blocking(aio_device.Device.time)
    call = blocking(aio_device.Device.call)
    prove = blocking(aio_device.Device.prove)
    program = blocking(aio_device.Device.program)

    @documented_as(aio_device.Device.load)
    def load(self, artifact: Artifact | Path | str) -> RemoteModule:
        return RemoteModule(self._inner.load(artifact), self._thread)

    @documented_as(aio_device.Device.logs)
    def logs(self) -> Generator[str, None, None]:
        return self._thread.pull(self._inner.logs())

    release = blocking(aio_device.Device.release)


class RemoteModule(Blocking[aio_remote.RemoteModule]):
    """One artifact on one leased device. Uploaded when first used."""

    @property
    def artifact(self) -> Artifact:
        """The running artifact."""
        return self._inner.artifact

    __call__ = blocking(aio_remote.RemoteModule.__call__)
    time = blocking(aio_remote.RemoteModule.time)


async def _read_on_thread(source: Iterable[Trial]) -> AsyncIterator[Trial]:
    items = iter(source)
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        yield item
