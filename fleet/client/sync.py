"""Blocking client: the same names and arguments as `fleet.aio`; each call waits for its result.

An event loop on a thread of its own does the work, so leases are renewed while the caller computes. An interrupt of the
caller's thread cancels the awaited call, properly: a request leaves the queue, a measurement stops.

Methods keep the signatures and docstrings of `fleet.aio`: see `fleet.client.blocking`.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Unpack

from fleet.client import aio, held
from fleet.client.blocking import Blocking, blocking, documented_as
from fleet.client.booking_notices import OnBooking
from fleet.client.event_thread import EventThread
from fleet.client.leases import OnQueued
from fleet.client.sync_device import Device as Device
from fleet.client.sync_device import RemoteModule as RemoteModule
from fleet.domain.jobs import JobStatus, OptimizerStatus
from fleet.domain.leases import LeaseKeywords, LeaseTerms, make_terms
from fleet.domain.snapshot import Snapshot


def connect(address: str | None = None, *, connect_timeout_sec: float = 10.0, holder: str | None = None) -> Fleet:
    """Return an open client; use it in a `with` block, or close it.

    Args:
        address: "host:port" of the tracker; as configured, else 127.0.0.1:9290, when None.
        connect_timeout_sec: how long to try.
        holder: note shown to others after the name in this account's certificate; "user@host" if None.

    Raises:
        ConfigError: `address` is not host:port.
        TrackerUnavailable: no tracker answered in time.
    """
    client = aio.connect(address, connect_timeout_sec=connect_timeout_sec, holder=holder)
    thread = EventThread()
    try:
        thread.run(_awaited(client))
    except BaseException:  # also if cancelled or interrupted; raised again
        thread.stop()
        raise
    return Fleet(client, thread)


@contextlib.contextmanager
def held_device(member: int = 1) -> Iterator[Device]:
    """Use the device leased by `fleet acquire` in the environment, without a request for another.

    Args:
        member: number of the device in a set: 2 is the one of the first --and.

    Raises:
        ConfigError: this process was not started by `fleet acquire`, or with fewer devices.
    """
    thread = EventThread()
    context = held.held_device(member)
    try:
        device = thread.run(context.__aenter__())
        try:
            yield Device(device, thread)
        finally:
            thread.run(context.__aexit__(None, None, None))
    finally:
        thread.stop()


class Fleet(Blocking[aio.Fleet]):
    """A client of one tracker. Used from any thread."""

    def __init__(self, client: aio.Fleet, thread: EventThread) -> None:
        super().__init__(client, thread)
        self._is_closed = False
        atexit.register(self.close)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """ "host:port" of the tracker."""
        return self._inner.address

    @property
    def holder(self) -> str:
        """Name of this client for other users."""
        return self._inner.holder

    @property
    def is_connected(self) -> bool:
        """True if the tracker answers now."""
        return self._inner.is_connected

    @property
    def fleet_id(self) -> str:
        """Id of the fleet, the same at each of its addresses; empty if its tracker is of an older version."""
        return self._inner.fleet_id

    @property
    def account(self) -> str:
        """Account that this client's requests count for; empty if the tracker is of an older version."""
        return self._inner.account

    @property
    def may_ask_for_others(self) -> bool:
        """True if requests may name another account."""
        return self._inner.may_ask_for_others

    @documented_as(aio.Fleet.close)
    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.stop()

    @documented_as(aio.Fleet.acquire)
    def acquire(
        self,
        selector: str | LeaseTerms,
        *,
        on_queued: OnQueued | None = None,
        continues: str = "",
        **keywords: Unpack[LeaseKeywords],
    ) -> contextlib.AbstractContextManager[Device]:
        return self._acquired(make_terms(selector, **keywords), on_queued, continues)

    @documented_as(aio.Fleet.acquire_device)
    def acquire_device(
        self,
        selector: str | LeaseTerms,
        *,
        on_queued: OnQueued | None = None,
        continues: str = "",
        **keywords: Unpack[LeaseKeywords],
    ) -> Device:
        request = self._inner.acquire_device(selector, on_queued=on_queued, continues=continues, **keywords)
        return Device(self._thread.run(request), self._thread)

    @documented_as(aio.Fleet.acquire_all)
    def acquire_all(
        self,
        selectors: Sequence[str],
        *,
        on_queued: OnQueued | None = None,
        **keywords: Unpack[LeaseKeywords],
    ) -> contextlib.AbstractContextManager[list[Device]]:
        return self._acquired_all(selectors, on_queued, keywords)

    devices = blocking(aio.Fleet.devices)
    snapshot = blocking(aio.Fleet.snapshot)
    check_selector = blocking(aio.Fleet.check_selector)
    history = blocking(aio.Fleet.history)
    usage = blocking(aio.Fleet.usage)

    @documented_as(aio.Fleet.watch)
    def watch(self, min_interval_sec: float = 1.0) -> Generator[Snapshot, None, None]:
        return self._thread.pull(self._inner.watch(min_interval_sec))

    @documented_as(aio.Fleet.lease_log)
    def lease_log(self, lease_name: str, *, follow: bool = False) -> Generator[str, None, None]:
        return self._thread.pull(self._inner.lease_log(lease_name, follow=follow))

    @documented_as(aio.Fleet.publish)
    def publish(self, status: JobStatus | OptimizerStatus) -> None:
        self._thread.call(lambda: self._inner.publish(status))

    revoke = blocking(aio.Fleet.revoke)
    cancel_request = blocking(aio.Fleet.cancel_request)
    explain_request = blocking(aio.Fleet.explain_request)
    reset_epochs = blocking(aio.Fleet.reset_epochs)
    reload_tracker = blocking(aio.Fleet.reload_tracker)
    set_health = blocking(aio.Fleet.set_health)
    book = blocking(aio.Fleet.book)
    bookings = blocking(aio.Fleet.bookings)
    cancel_booking = blocking(aio.Fleet.cancel_booking)
    poison = blocking(aio.Fleet.poison)
    forget_poison = blocking(aio.Fleet.forget_poison)

    @documented_as(aio.Fleet.watch_bookings)
    def watch_bookings(self, on_change: OnBooking) -> None:
        self._thread.call(lambda: self._inner.watch_bookings(on_change))

    @contextlib.contextmanager
    def _acquired(self, terms: LeaseTerms, on_queued: OnQueued | None, continues: str) -> Iterator[Device]:
        device = self.acquire_device(terms, on_queued=on_queued, continues=continues)
        try:
            yield device
        finally:
            device.release()

    @contextlib.contextmanager
    def _acquired_all(
        self, selectors: Sequence[str], on_queued: OnQueued | None, keywords: LeaseKeywords
    ) -> Iterator[list[Device]]:
        context = self._inner.acquire_all(selectors, on_queued=on_queued, **keywords)
        devices = self._thread.run(context.__aenter__())
        try:
            yield [Device(device, self._thread) for device in devices]
        finally:
            self._thread.run(context.__aexit__(None, None, None))


async def _awaited(client: aio.Fleet) -> aio.Fleet:
    return await client
