"""Leases of a gateway, kept for a moment between the sessions of stock clients.

MetaSchedule's runner opens a session for each candidate. Waiting in the tracker's queue each time would cost more than
most candidates.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from fleet.client.aio import Fleet
from fleet.client.device import Device
from fleet.domain.leases import LeaseTerms
from fleet.errors import FleetError
from fleet.gateway.client_process import ClientProcess

KEPT_SEC = 1.0
"""Longest time that an unused lease is kept."""


class KeptLeases:
    """Hands out leased devices. Used on one event loop."""

    def __init__(self, client: Fleet, kept_sec: float = KEPT_SEC) -> None:
        self._client = client
        self._kept_sec = kept_sec
        self._pools: dict[LeaseTerms, _Pool] = {}

    @property
    def idle_names(self) -> set[str]:
        """Names of the leased devices that no session uses."""
        return {device.name for pool in self._pools.values() for device in pool.unused}

    async def take(self, terms: LeaseTerms) -> Device:
        """Return a device that is leased for these terms: a kept one, else the first that is granted or given back.

        Raises:
            FleetError: the tracker refuses the request.
        """
        pool = self._pools.setdefault(terms, _Pool(self._client, terms, self._kept_sec))
        try:
            return await pool.take()
        finally:
            self._pools = {kept: pool for kept, pool in self._pools.items() if pool.is_in_use}

    def give_back(self, terms: LeaseTerms, device: Device, client: ClientProcess | None = None) -> None:
        """Take a device back after its session: the next session uses it, or it is released soon.

        Args:
            client: process of the session; its end releases the device. Closed with the wait.
        """
        self._pools.setdefault(terms, _Pool(self._client, terms, self._kept_sec)).offer(device, client)

    async def close(self) -> None:
        """Release the unused leases."""
        for pool in self._pools.values():
            await pool.close()


@dataclass(frozen=True, slots=True)
class _Wait:
    """Wait of an unused device for the next session."""

    timer: asyncio.TimerHandle
    client: ClientProcess | None

    def end(self) -> None:
        self.timer.cancel()
        if self.client is not None:
            self.client.close()


class _Pool:
    """Leases for equal terms."""

    def __init__(self, client: Fleet, terms: LeaseTerms, kept_sec: float) -> None:
        self._client = client
        self._terms = terms
        self._kept_sec = kept_sec
        self.idle: dict[Device, _Wait] = {}
        """Unused devices."""

        self._waiters: deque[asyncio.Future[Device]] = deque()
        self._requests: list[asyncio.Task[None]] = []
        """At the tracker: one for each waiter, oldest first."""

        self._releases: dict[asyncio.Task[None], Device] = {}

    @property
    def is_in_use(self) -> bool:
        """True if it holds or awaits a lease."""
        return bool(self.idle or self._waiters or self._requests or self._releases)

    @property
    def unused(self) -> list[Device]:
        """Devices without a session, also while they are being released."""
        return [*self.idle, *self._releases.values()]

    async def take(self) -> Device:
        while self.idle:
            device = next(iter(self.idle))
            self.idle.pop(device).end()
            if _is_usable(device):
                return device
            self._release(device)
        waiter: asyncio.Future[Device] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._requests.append(asyncio.create_task(self._request(), name="gateway request"))
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.offer(waiter.result())
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._drop_requests()

    def offer(self, device: Device, client: ClientProcess | None = None) -> None:
        """Give a device to the first waiter; without one, keep it for a moment, while its last client lives."""
        if _is_usable(device) and not self._waiters:
            timer = asyncio.get_running_loop().call_later(self._kept_sec, self._drop_idle, device)
            self.idle[device] = _Wait(timer, client)
            device.watch_yield(lambda: self._drop_idle(device))
            if client is not None:
                client.watch(lambda: self._drop_idle(device))
            return
        if client is not None:
            client.close()
        if not _is_usable(device):
            self._release(device)
            return
        self._waiters.popleft().set_result(device)
        self._drop_requests()

    async def close(self) -> None:
        for device in list(self.idle):
            self._drop_idle(device)
        await asyncio.gather(*self._releases)

    async def _request(self) -> None:
        try:
            device = await self._client.acquire_device(self._terms)
        except FleetError as error:
            if self._waiters:
                self._waiters.popleft().set_exception(error)
        else:
            self.offer(device)
        finally:
            task = asyncio.current_task()
            self._requests = [request for request in self._requests if request is not task]

    def _drop_requests(self) -> None:
        """Cancel the newest requests that nobody waits for."""
        while len(self._requests) > len(self._waiters):
            request = self._requests.pop()
            if request is not asyncio.current_task():
                request.cancel()

    def _drop_idle(self, device: Device) -> None:
        wait = self.idle.pop(device, None)
        if wait is not None:
            wait.end()
            self._release(device)

    def _release(self, device: Device) -> None:
        release = asyncio.create_task(device.release(), name=f"release {device.name}")
        self._releases[release] = device
        release.add_done_callback(lambda ended: self._releases.pop(ended, None))


def _is_usable(device: Device) -> bool:
    return device.ended is None and device.yield_wanted is None
