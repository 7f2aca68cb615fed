"""The client, on asyncio: one `Fleet` per tracker, one stream behind it.

    async with fleet.aio.connect("127.0.0.1:9290") as client:
        async with client.acquire("cpu") as device:
            await device.ensure([artifact])
            async for measurement in device.measure(trials):
                ...

Once connected, a client rides out outages of the tracker silently: leases live on by their tokens, and waiting
requests are repeated when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Generator, Sequence
from types import TracebackType
from typing import Unpack

from fleet.base.clock import Clock, SystemClock
from fleet.base.machine import account_name
from fleet.base.network import check_addresses
from fleet.base.settings import look_up
from fleet.client.booking_notices import OnBooking
from fleet.client.device import Device
from fleet.client.keeper import LeaseKeeper
from fleet.client.lease_logs import read_log
from fleet.client.leases import OnQueued
from fleet.client.link import TrackerLink
from fleet.domain.bookings import Booking, booking_name, check_count, check_length, checked_start
from fleet.domain.devices import DeviceStatus, Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.health import HealthState, checked_mark_reason, checked_until
from fleet.domain.jobs import JobStatus, OptimizerStatus
from fleet.domain.leases import LONGEST_SEC, Lease, LeaseKeywords, LeaseTerms, PendingRequest, make_terms, set_terms
from fleet.domain.poison import Poison, checked_digest
from fleet.domain.selectors import check_comparable, labels_of, parse_selector
from fleet.domain.shares import Reload
from fleet.domain.snapshot import Snapshot
from fleet.domain.usage import Usage, UsageKey


def default_address() -> str:
    """The configured address ($FLEET_TRACKER, then the client's file), else this machine's usual port."""
    return look_up("tracker").value


def connect(
    address: str | None = None,
    *,
    connect_timeout_sec: float = 10.0,
    holder: str | None = None,
    clock: Clock | None = None,
) -> Fleet:
    """Return a client to be opened by `async with` or `await`.

    Args:
        address: "host:port" of the tracker; as configured, else 127.0.0.1:9290, when None.
        connect_timeout_sec: how long to try before TrackerUnavailable.
        holder: note shown to others after the name in this account's certificate; "user@host" if None.

    Raises:
        ConfigError: `address` is not host:port.
    """
    return Fleet(address or default_address(), connect_timeout_sec, holder or account_name(), clock or SystemClock())


class Fleet:
    """A client of one tracker. Used on one event loop."""

    def __init__(self, address: str, connect_timeout_sec: float, holder: str, clock: Clock) -> None:
        check_addresses(address, "the tracker's address")
        self.address = address
        """ "host:port" of the tracker."""

        self.holder = holder
        """Name of this client for other users."""

        self._connect_timeout_sec = connect_timeout_sec
        self._clock = clock
        self._link = TrackerLink(address, holder, clock)
        self._leases = LeaseKeeper(self._link, address)

    def __repr__(self) -> str:
        state = "closed" if not self._link.is_open else "connected" if self.is_connected else "waiting for the tracker"
        held = ", ".join(self._leases.device_names)
        return f"<Fleet {self.address}, {state}{f', holds {held}' if held else ''}>"

    def __await__(self) -> Generator[object, None, Fleet]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Fleet:
        await self._link.open(self._connect_timeout_sec)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """True if the tracker answers now."""
        return self._link.is_up

    @property
    def fleet_id(self) -> str:
        """Id of the fleet, the same at each of its addresses; empty if its tracker is of an older version."""
        return self._link.stream.fleet_id

    @property
    def account(self) -> str:
        """Account that this client's requests count for; empty if the tracker is of an older version."""
        return self._link.stream.account

    @property
    def may_ask_for_others(self) -> bool:
        """True if requests may name another account."""
        return self._link.stream.may_ask_for_others

    async def close(self) -> None:
        """Release all leases and disconnect. Idempotent."""
        if self._link.is_open:
            async with self._link.closing():
                await self._leases.release_all()

    def acquire(
        self,
        selector: str | LeaseTerms,
        *,
        on_queued: OnQueued | None = None,
        continues: str = "",
        **keywords: Unpack[LeaseKeywords],
    ) -> contextlib.AbstractAsyncContextManager[Device]:
        """Wait for a device and hold it until the block ends.

        Args:
            selector: which devices will do: "cpu", "kind=cpu,arch=x86_64", "name=pi4-03"; see `fleet.domain.selectors`.
            on_queued: called with a `PendingRequest` (position, reason) when the request waits and when it moves;
                by the client's event loop, so it has to return soon.
            continues: name of a batch lease that this client gave back because it had to give way
                (`Device.yield_wanted`); the request then counts as old as that lease's.
            keywords: fields of `fleet.domain.leases.LeaseTerms`.

        Raises:
            InvalidRequest: no selector.
            NotAllowed: `account` is another's, and this key may not ask for others.
            NoMatchingDevice: no device of the fleet can ever satisfy it; the message lists the devices.
            KeyRevoked: this account is no member of the fleet any more; its leases have ended.
            WaitTimeout: none came free in time.
        """
        return self._acquired(make_terms(selector, **keywords), on_queued, continues)

    async def acquire_device(
        self,
        selector: str | LeaseTerms,
        *,
        on_queued: OnQueued | None = None,
        continues: str = "",
        **keywords: Unpack[LeaseKeywords],
    ) -> Device:
        """Acquire a device without a block: release it by its `release()`."""
        (device,) = await self._leases.acquire(make_terms(selector, **keywords), on_queued, continues)
        return device

    def acquire_all(
        self,
        selectors: Sequence[str],
        *,
        on_queued: OnQueued | None = None,
        **keywords: Unpack[LeaseKeywords],
    ) -> contextlib.AbstractAsyncContextManager[list[Device]]:
        """Wait for several devices, all granted at once, and hold them until the block ends.

        Each device has its own lease: one that ends leaves the others.

        Args:
            selectors: one for each device, at most 16: ["board=rpi4", "gpu=mali"]. The list of devices has their order.
            on_queued: see `acquire`.
            keywords: see `acquire`; `prefer` is not taken.

        Raises:
            InvalidRequest: no or too many selectors, more leases than a quota of the class allows, or a tracker of an
                older version.
            NoMatchingDevice: there are not enough devices for all selectors together; the message names the selectors.
            WaitTimeout: they were not all free in time.
        """
        return self._acquired_all(set_terms(selectors, **keywords), on_queued)

    async def devices(self, selector: str = "*") -> list[DeviceStatus]:
        """Return the devices with their current inventory, state and readings, sorted by name.

        Args:
            selector: which ones: "cpu", "kind=cpu,arch=x86_64"; see `fleet.domain.selectors`.

        Raises:
            InvalidRequest: no selector, or one that compares a label with a limit of another unit.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        wanted = parse_selector(selector)
        labelled = [(one, labels_of(one)) for one in (await self.snapshot()).devices]
        check_comparable(wanted, [labels for _, labels in labelled])
        return [one for one, labels in labelled if wanted.matches(labels)]

    async def snapshot(self) -> Snapshot:
        """Return the current state of the fleet: devices, leases, the queue, running jobs.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.snapshot()

    async def check_selector(self, selector: str) -> int:
        """Return the number of devices that a selector matches, free or not: check before preparing work.

        Trackers of older versions do not say: 0.

        Raises:
            InvalidRequest: it cannot be read.
            NoMatchingDevice: none; the text lists the devices.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.check_selector(selector)

    async def history(self, device_name: str) -> list[Telemetry]:
        """Return the last hour of a device's readings, oldest first, as the tracker remembers it.

        Raises:
            NotFound: there is no such device.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.history(device_name)

    async def usage(self, by: UsageKey = UsageKey.ACCOUNT, since_sec: float = 7 * 86_400.0) -> Usage:
        """Return the use of the fleet by leases that ended in this time, largest first.

        Raises:
            InvalidRequest: the time is not positive, or longer than 90 days.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.usage(by, since_sec)

    def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[Snapshot, None]:
        """Yield the fleet now and after each change, for ever. During an outage, wait for the tracker."""
        return self._link.calls.watch(min_interval_sec)

    async def lease_log(self, lease_name: str, *, follow: bool = False) -> AsyncGenerator[str, None]:
        """Yield the output of a lease's workers, stdout and stderr, also after its end. For its holder and admins.

        Agents keep the first MiB of each lease for seven days, and the newest 100 MiB of all.

        Args:
            follow: go on until the lease's session ends.

        Raises:
            NotFound: no agent keeps output of this lease.
            NotAllowed: the lease is another's.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        snapshot = await self.snapshot()
        texts = read_log(snapshot, lease_name, self._link.calls.connection.proof, follow=follow)
        async with contextlib.aclosing(texts):
            async for text in texts:
                yield text

    def publish(self, status: JobStatus | OptimizerStatus) -> None:
        """Show a job or an optimizer in `fleet status`. Best effort: only the newest state of each is sent."""
        self._link.stream.publish(status)

    async def revoke(self, lease_name: str, reason: str = "") -> Lease:
        """End a lease against its holder's will.

        Raises:
            NotFound: no such live lease.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.revoke(lease_name, reason)

    async def cancel_request(self, request_id: str, reason: str = "") -> PendingRequest:
        """Take a waiting request out of the queue, one's own or, as an admin, anybody's.

        The waiting client gets Cancelled with the reason.

        Raises:
            NotFound: no such request waits.
            NotAllowed: it is another's.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.cancel_request(request_id, reason)

    async def explain_request(self, request_id: str) -> Explanation:
        """Return why a request waits: share, quota, suitable devices, and the gain from leaving out each clause.

        Raises:
            NotFound: no such request waits.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.explain_request(request_id)

    async def reset_epochs(self, device_name: str) -> int:
        """Reset a device's epochs, and return the value that later ones exceed. Ends its lease.

        Raises:
            NotFound: no such device.
            DeviceUnreachable: its agent is not attached.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.reset_epochs(device_name)

    async def reload_tracker(self) -> Reload:
        """Have the tracker read its shares and quotas again, and return those in force. For admins.

        Raises:
            ConfigError: the file cannot be read or is not valid. The former rules hold.
            NotAllowed: this account is no admin there.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.reload_tracker()

    async def set_health(
        self, selector: str, state: HealthState, reason: str, *, until_sec: float | None = None
    ) -> list[str]:
        """Judge the devices that a selector matches, and return their names. For admins.

        Devices that are draining, quarantined, in maintenance or retired are granted to nobody, except an admin who
        asks for one by name with `even_if`. Their batch leases give way.

        Args:
            selector: as in `acquire`; a name also stands for a device that is away.
            state: the judgement; `HealthState.GOOD` lifts an earlier one.
            reason: why, in one line.
            until_sec: revoke leases that outlast this moment [s since 1970]; None: they may go on.

        Raises:
            InvalidRequest: the selector or the reason is malformed, or the moment is not in the next 30 days.
            NoMatchingDevice: no device matches.
            NotAllowed: this account is no admin there.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        checked = str(parse_selector(selector))
        return await self._link.calls.set_health(
            checked, state, checked_mark_reason(reason), checked_until(until_sec, state, self._clock.now_sec())
        )

    async def book(self, selector: str, starts_at_sec: float, length_sec: float, *, count: int = 1) -> Booking:
        """Book devices: keep them free for this account's requests with `booking=`. Unused ones are released.

        Args:
            selector: as in `acquire`.
            starts_at_sec: at most 30 days ahead [s since 1970].
            length_sec: length [s], at most that of a lease of this account.
            count: number of devices, 1 to 64.

        Raises:
            InvalidRequest: the selector is malformed, or the time, length or count is out of bounds or beyond the
                quota.
            NoMatchingDevice: no device matches, or fewer than `count`.
            AlreadyBooked: other bookings need the devices at that time.
            LimitReached: this account, or everybody, has too many bookings.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        checked = str(parse_selector(selector))
        check_count(count)
        check_length(length_sec, LONGEST_SEC)
        starts_at_sec = checked_start(starts_at_sec, self._clock.now_sec())
        return await self._link.calls.book(
            checked,
            starts_at_sec,
            starts_at_sec + length_sec,
            count=count,
            request_id=secrets.token_hex(8),
            holder=self.holder,
        )

    async def bookings(self) -> list[Booking]:
        """Return all bookings that have not ended, earliest start first.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.bookings()

    def watch_bookings(self, on_change: OnBooking) -> None:
        """Have a function called when a booking of this account cannot be kept any more, and when it can again.

        Args:
            on_change: called with the `Booking`, which lacks `missing_device_names`, or none of them again; at once
                for bookings that lack devices now, and once more after each reconnection. The client's event loop
                calls it, so it has to return soon.

        Trackers of older versions report nothing.
        """
        self._link.stream.bookings.watch(on_change)

    async def cancel_booking(self, name: str) -> Booking:
        """End a booking of this account, or any as an admin. Leases on its devices go on.

        Args:
            name: with or without "bookings/".

        Raises:
            NotFound: no such booking.
            NotAllowed: it is another account's.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.cancel_booking(booking_name(name))

    async def poison(self) -> list[Poison]:
        """Return the programs that killed a device and that all agents refuse, oldest first.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.poison()

    async def forget_poison(self, digest: str) -> Poison:
        """Have all agents run a program again, and return its entry. For admins.

        Args:
            digest: "sha256:<hex>" of the artifact.

        Raises:
            InvalidRequest: the digest is malformed.
            NotFound: agents do not refuse it.
            NotAllowed: this account is no admin there.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._link.calls.forget_poison(checked_digest(digest))

    @contextlib.asynccontextmanager
    async def _acquired_all(self, terms: LeaseTerms, on_queued: OnQueued | None) -> AsyncGenerator[list[Device], None]:
        devices = await self._leases.acquire(terms, on_queued)
        try:
            yield devices
        finally:
            await asyncio.gather(*(device.release() for device in devices))

    @contextlib.asynccontextmanager
    async def _acquired(
        self, terms: LeaseTerms, on_queued: OnQueued | None, continues: str
    ) -> AsyncGenerator[Device, None]:
        device = await self.acquire_device(terms, on_queued=on_queued, continues=continues)
        try:
            yield device
        finally:
            await device.release()
