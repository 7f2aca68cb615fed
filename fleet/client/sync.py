"""The client without asyncio: the same names and arguments, each call waiting for its answer.

An event loop on a thread of its own does the work, so leases are renewed while the caller computes. An interrupt of the
caller's thread cancels what it waits for, properly: a request leaves the queue, a measurement stops.

Signatures and docstrings are written out, for editors and `help()`; a test compares them with those of `fleet.aio`.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Unpack

from fleet.client import aio, held
from fleet.client.event_thread import EventThread
from fleet.client.leases import OnQueued
from fleet.client.sync_device import Device as Device
from fleet.client.sync_device import RemoteModule as RemoteModule
from fleet.domain.devices import DeviceStatus, Telemetry
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import Lease, LeaseTerms, LeaseWish, PendingRequest, make_wish
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
    except BaseException:
        thread.stop()
        raise
    return Fleet(client, thread)


@contextlib.contextmanager
def held_device() -> Iterator[Device]:
    """Use the device whose lease `fleet acquire` put into the environment, without asking for another.

    Raises:
        ConfigError: this process was not started by `fleet acquire`.
    """
    thread = EventThread()
    context = held.held_device()
    try:
        device = thread.run(context.__aenter__())
        try:
            yield Device(device, thread)
        finally:
            thread.run(context.__aexit__(None, None, None))
    finally:
        thread.stop()


class Fleet:
    """A client of one tracker. Used from any thread."""

    def __init__(self, client: aio.Fleet, thread: EventThread) -> None:
        self._inner = client
        self._thread = thread
        self._is_closed = False
        atexit.register(self.close)

    def __repr__(self) -> str:
        return repr(self._inner)

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
        """As whom others see this client."""
        return self._inner.holder

    @property
    def is_connected(self) -> bool:
        """Whether the tracker answers at this moment."""
        return self._inner.is_connected

    @property
    def fleet_id(self) -> str:
        """What names the fleet, whatever address led to it; empty if its tracker is of an older version."""
        return self._inner.fleet_id

    def close(self) -> None:
        """Give all leases back and hang up. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        try:
            self._thread.run(self._inner.close())
        finally:
            self._thread.stop()

    def acquire(
        self, selector: str | LeaseWish, *, on_queued: OnQueued | None = None, **terms: Unpack[LeaseTerms]
    ) -> contextlib.AbstractContextManager[Device]:
        """Wait for a device and hold it for the time of the `with` block.

        Args:
            selector: which devices will do: "cpu", "kind=cpu,arch=x86_64", "name=pi4-03"; see `fleet.domain.selectors`.
            on_queued: called with a `PendingRequest` (position, reason) when the request waits and when it moves;
                by the client's event loop, so it has to return soon.
            terms: priority, ttl_sec, max_sec, wait_timeout_sec, purpose, prefer; see `fleet.domain.leases.LeaseTerms`.

        Raises:
            InvalidRequest: no selector.
            NoMatchingDevice: no device of the fleet can ever satisfy it; the message lists what there is.
            KeyRevoked: this account is no member of the fleet any more; its leases have ended.
            WaitTimeout: none came free in time.
        """
        return self._acquired(make_wish(selector, **terms), on_queued)

    def acquire_device(
        self, selector: str | LeaseWish, *, on_queued: OnQueued | None = None, **terms: Unpack[LeaseTerms]
    ) -> Device:
        """Like `acquire`, for those who cannot use `with`: give the device back with `device.release()`."""
        request = self._inner.acquire_device(selector, on_queued=on_queued, **terms)
        return Device(self._thread.run(request), self._thread)

    def devices(self, selector: str = "*") -> list[DeviceStatus]:
        """Return the devices as they are now: what they are, whether they are free, their readings; sorted by name.

        Args:
            selector: which ones: "cpu", "kind=cpu,arch=x86_64"; see `fleet.domain.selectors`.

        Raises:
            InvalidRequest: no selector.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.devices(selector))

    def snapshot(self) -> Snapshot:
        """Return the fleet as it is now: devices, leases, the queue, running jobs.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.snapshot())

    def check_selector(self, selector: str) -> int:
        """Return how many devices of the fleet a selector matches, free or not: ask before work that needs one.

        Trackers of older versions do not say: 0.

        Raises:
            InvalidRequest: it cannot be read.
            NoMatchingDevice: none; the text says what there is.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.check_selector(selector))

    def history(self, device_name: str) -> list[Telemetry]:
        """Return the last hour of a device's readings, oldest first, as the tracker remembers it.

        Raises:
            NotFound: there is no such device.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.history(device_name))

    def watch(self, min_interval_sec: float = 1.0) -> Generator[Snapshot, None, None]:
        """Yield the fleet now and whenever it has changed, for ever. During an outage, wait for the tracker."""
        return self._thread.pull(self._inner.watch(min_interval_sec))

    def publish(self, job: JobStatus) -> None:
        """Show a job in `fleet status`. Best effort: only the newest state of each job is sent."""
        self._thread.call(lambda: self._inner.publish(job))

    def revoke(self, lease_name: str, reason: str = "") -> Lease:
        """End a lease against its holder's will.

        Raises:
            NotFound: no such live lease.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.revoke(lease_name, reason))

    def cancel_request(self, request_id: str, reason: str = "") -> PendingRequest:
        """Take a waiting request out of the queue, one's own or, as an admin, anybody's.

        Whoever waits for it gets Cancelled with the reason.

        Raises:
            NotFound: no such request waits.
            NotAllowed: it is another's.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.cancel_request(request_id, reason))

    def reset_epochs(self, device_name: str) -> int:
        """Have a device's epochs counted anew, and return what they are larger than from now on. Ends its lease.

        Raises:
            NotFound: no such device.
            DeviceUnreachable: its agent is not attached.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return self._thread.run(self._inner.reset_epochs(device_name))

    @contextlib.contextmanager
    def _acquired(self, wish: LeaseWish, on_queued: OnQueued | None) -> Iterator[Device]:
        device = self.acquire_device(wish, on_queued=on_queued)
        try:
            yield device
        finally:
            device.release()


async def _awaited(client: aio.Fleet) -> aio.Fleet:
    return await client
