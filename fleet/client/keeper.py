"""Leases that a client holds: asked for, renewed in the background, and given back."""

from __future__ import annotations

import asyncio
import contextlib
import math

from fleet.client.device import Device
from fleet.client.leases import HeldLease, OnQueued, Renew, Waiting
from fleet.client.link import TrackerLink
from fleet.client.stream import TrackerStream
from fleet.domain.leases import LeaseTerms
from fleet.errors import InvalidRequest, WaitTimeout

_RELEASE_TIMEOUT_SEC = 2.0
_LOCAL_SLACK_SEC = 1.0
"""Delay after which the client ends a wait itself if the tracker does not end it at its timeout."""

_LOOK_SEC = 0.1
"""Interval of checks whether a lease lives after all when its token has expired."""

_LAST_LOOKS = 10


class LeaseKeeper:
    """Devices of one client, each with a task that renews its lease."""

    def __init__(self, link: TrackerLink, address: str) -> None:
        self._link = link
        self._address = address
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._devices: set[Device] = set()

    @property
    def device_names(self) -> list[str]:
        """Names of the devices held now, sorted."""
        return sorted(device.name for device in self._devices)

    async def acquire(self, terms: LeaseTerms, on_queued: OnQueued | None, continues: str = "") -> list[Device]:
        """Wait for the devices of a request, and hold them until each is released.

        Raises:
            InvalidRequest: several devices, from a tracker of an older version.
            WaitTimeout: they were not free in time.
            FleetError: the tracker refuses the request.
        """
        stream = self._link.stream
        if stream.fatal is not None:
            raise stream.fatal
        if len(terms.selectors) > max(stream.most_set_devices, 1):
            raise InvalidRequest(f"the tracker at {self._address} is of an older version and grants no sets; update it")
        found = await _answer(stream, stream.table.ask(terms, on_queued, continues), terms.wait_timeout_sec)
        return [self._hold(stream, held) for held in found]

    async def release_all(self) -> None:
        """Give all devices back."""
        await asyncio.gather(*(device.release() for device in list(self._devices)))

    def _hold(self, stream: TrackerStream, held: HeldLease) -> Device:
        self._keepers[held.name] = asyncio.create_task(_keep(stream, held), name=f"fleet keep {held.name}")
        device = Device(held, self._link.calls.connection.proof, lambda: self._give_back(stream, held, device))
        self._devices.add(device)
        return device

    async def _give_back(self, stream: TrackerStream, held: HeldLease, device: Device) -> None:
        self._devices.discard(device)
        self._keepers.pop(held.name).cancel()
        if held.ended is not None:
            return
        confirmed = stream.table.release(held.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT_SEC if stream.is_up else 0):
                await asyncio.shield(confirmed)


async def _answer(stream: TrackerStream, waiting: Waiting, wait_timeout_sec: float | None) -> list[HeldLease]:
    """Wait for the tracker's answer. If the wait ends in another way, nothing stays queued or held."""
    local_timeout_sec = None if wait_timeout_sec is None else wait_timeout_sec + _LOCAL_SLACK_SEC
    found: list[HeldLease] | None = None
    try:
        async with asyncio.timeout(local_timeout_sec):
            found = await asyncio.shield(waiting.answer)
    except TimeoutError:
        where = waiting.last.reason if waiting.last is not None else "the tracker is away"
        raise WaitTimeout(f"no device for {waiting.terms.wanted!r} within {wait_timeout_sec:g} s; {where}") from None
    finally:
        stream.table.leave(waiting.request_id)
        if found is None and waiting.answer.done() and waiting.answer.exception() is None:
            for held in waiting.answer.result():  # granted at the very moment we gave up waiting
                stream.table.release(held.name)
    return found


async def _keep(stream: TrackerStream, held: HeldLease) -> None:
    """Renew a lease whenever a third of its life has passed, until it ends."""
    while held.ended is None:
        renewal_sec = math.inf if held.is_at_its_longest else held.ttl_sec / 3
        await asyncio.sleep(max(0.0, min(renewal_sec, held.remaining_sec())))
        if held.ended is None and not held.is_at_its_longest:
            stream.table.send(Renew(held.name))
            if stream.is_up:
                await _await_last_word(held)
        if held.remaining_sec() <= 0:
            stream.table.expire(held)


async def _await_last_word(held: HeldLease) -> None:
    """After a token's expiry, give a connected tracker a second to report whether its lease lives.

    This process may have been suspended, with a renewal unsent or unread; a tracker that was suspended with it reads
    messages before it ends a lease, too. The agent refuses the old token meanwhile.
    """
    for _ in range(_LAST_LOOKS):  # several short waits, as the process may be suspended during one of them
        if held.ended is not None or held.remaining_sec() > 0:
            return
        await asyncio.sleep(_LOOK_SEC)
