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
import logging
import math
from collections.abc import AsyncGenerator, Generator, Sequence
from types import TracebackType
from typing import Unpack

from fleet.base.clock import Clock, SystemClock
from fleet.base.machine import account_name
from fleet.base.network import check_address, host_of, is_answered, is_loopback
from fleet.base.settings import look_up
from fleet.client.connection import no_tracker
from fleet.client.device import Device
from fleet.client.leases import HeldLease, OnQueued, Renew, Waiting
from fleet.client.stream import TrackerStream
from fleet.client.tracker_calls import TrackerCalls
from fleet.domain.devices import DeviceStatus, Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.health import HealthState, checked_reason, checked_until
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import Lease, LeaseKeywords, LeaseTerms, PendingRequest, make_terms, set_terms
from fleet.domain.selectors import check_comparable, labels_of, parse_selector
from fleet.domain.shares import Reload
from fleet.domain.snapshot import Snapshot
from fleet.domain.usage import Usage, UsageKey
from fleet.errors import (
    ConfigError,
    FleetError,
    InvalidRequest,
    NotAllowed,
    NotJoined,
    TrackerUnavailable,
    Unauthenticated,
    WaitTimeout,
)
from fleet.identity.credentials import Credentials
from fleet.identity.store import CredentialStore

logger = logging.getLogger(__name__)

_RELEASE_TIMEOUT_SEC = 2.0
_LOCAL_SLACK_SEC = 1.0
"""The tracker ends a wait at its timeout; if it stays silent, the client ends the wait this much later."""

_LOOK_SEC = 0.1
_LAST_LOOKS = 10
"""Interval of checks whether a lease lives after all when its token has expired."""

_FRESH_SEC = 20 * 24 * 3600.0
"""Credentials that were written less than this ago need no look at when they end."""

_RENEW_EACH_SEC = 24 * 3600.0

_NOT_OPEN = "the client is not open; use it inside 'async with fleet.aio.connect(...)'"


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
        check_address(address, "the tracker's address")
        self.address = address
        """ "host:port" of the tracker."""

        self.holder = holder
        """Name of this client for other users."""

        self._connect_timeout_sec = connect_timeout_sec
        self._clock = clock
        self._calls: TrackerCalls | None = None
        self._stream: TrackerStream | None = None
        self._running: asyncio.Task[None] | None = None
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._devices: set[Device] = set()
        self._renewing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state = "closed" if self._calls is None else "connected" if self.is_connected else "waiting for the tracker"
        held = ", ".join(sorted(device.name for device in self._devices))
        return f"<Fleet {self.address}, {state}{f', holds {held}' if held else ''}>"

    def __await__(self) -> Generator[object, None, Fleet]:
        return self._opened().__await__()

    async def __aenter__(self) -> Fleet:
        return await self._opened()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        """True if the tracker answers now."""
        return self._stream is not None and self._stream.is_up

    @property
    def fleet_id(self) -> str:
        """Id of the fleet, the same at each of its addresses; empty if its tracker is of an older version."""
        return self._open_stream().fleet_id

    @property
    def account(self) -> str:
        """Account that this client's requests count for; empty if the tracker is of an older version."""
        return self._open_stream().account

    @property
    def may_ask_for_others(self) -> bool:
        """True if requests may name another account."""
        return self._open_stream().may_ask_for_others

    async def close(self) -> None:
        """Release all leases and disconnect. Idempotent."""
        if self._calls is None or self._stream is None or self._running is None:
            return
        calls, self._calls = self._calls, None
        try:
            await asyncio.gather(*(device.release() for device in list(self._devices)))
            self._stream.table.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RELEASE_TIMEOUT_SEC):
                    await self._stream.flush()
        finally:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await self._end_renewing()
            await calls.close()

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
            keywords: lease_class, priority, ttl_sec, max_sec, wait_timeout_sec, purpose, prefer, bid, account,
                even_if; see `fleet.domain.leases.LeaseTerms`.

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
        (device,) = await self._acquire(make_terms(selector, **keywords), on_queued, continues)
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
        return await self._open_calls().snapshot()

    async def check_selector(self, selector: str) -> int:
        """Return the number of devices that a selector matches, free or not: check before preparing work.

        Trackers of older versions do not say: 0.

        Raises:
            InvalidRequest: it cannot be read.
            NoMatchingDevice: none; the text lists the devices.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().check_selector(selector)

    async def history(self, device_name: str) -> list[Telemetry]:
        """Return the last hour of a device's readings, oldest first, as the tracker remembers it.

        Raises:
            NotFound: there is no such device.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().history(device_name)

    async def usage(self, by: UsageKey = UsageKey.ACCOUNT, since_sec: float = 7 * 86_400.0) -> Usage:
        """Return the use of the fleet by leases that ended in this time, largest first.

        Raises:
            InvalidRequest: the time is not positive, or longer than 90 days.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().usage(by, since_sec)

    def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[Snapshot, None]:
        """Yield the fleet now and after each change, for ever. During an outage, wait for the tracker."""
        return self._open_calls().watch(min_interval_sec)

    def publish(self, job: JobStatus) -> None:
        """Show a job in `fleet status`. Best effort: only the newest state of each job is sent."""
        self._open_stream().publish(job)

    async def revoke(self, lease_name: str, reason: str = "") -> Lease:
        """End a lease against its holder's will.

        Raises:
            NotFound: no such live lease.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().revoke(lease_name, reason)

    async def cancel_request(self, request_id: str, reason: str = "") -> PendingRequest:
        """Take a waiting request out of the queue, one's own or, as an admin, anybody's.

        The waiting client gets Cancelled with the reason.

        Raises:
            NotFound: no such request waits.
            NotAllowed: it is another's.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().cancel_request(request_id, reason)

    async def explain_request(self, request_id: str) -> Explanation:
        """Return why a request waits: share, quota, suitable devices, and the gain from leaving out each clause.

        Raises:
            NotFound: no such request waits.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().explain_request(request_id)

    async def reset_epochs(self, device_name: str) -> int:
        """Reset a device's epochs, and return the value that later ones exceed. Ends its lease.

        Raises:
            NotFound: no such device.
            DeviceUnreachable: its agent is not attached.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().reset_epochs(device_name)

    async def reload_tracker(self) -> Reload:
        """Have the tracker read its shares and quotas again, and return those in force. For admins.

        Raises:
            ConfigError: the file cannot be read or is not valid. The former rules hold.
            NotAllowed: this account is no admin there.
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        return await self._open_calls().reload_tracker()

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
        return await self._open_calls().set_health(
            checked, state, checked_reason(reason), checked_until(until_sec, state, self._clock.now_sec())
        )

    async def _opened(self) -> Fleet:
        if self._calls is not None:
            return self
        calls = TrackerCalls(self.address)
        if not is_loopback(host_of(self.address)):
            with contextlib.suppress(TrackerUnavailable):  # the tracker may still start
                await calls.connection.channel()  # a tracker of this machine may still be writing the credentials
        self._calls = calls
        self._stream = TrackerStream(self._calls.leases, self.holder, self._clock)
        self._running = asyncio.create_task(self._stream.run(), name="fleet tracker stream")
        try:
            async with asyncio.timeout(self._connect_timeout_sec):
                await self._stream.was_up.wait()
            if isinstance(self._stream.fatal, ConfigError | Unauthenticated | NotAllowed):
                raise self._stream.fatal
            if self._stream.fatal is not None:
                raise TrackerUnavailable(
                    f"the server at {self.address} is no tracker of tvm-fleet: {self._stream.fatal}"
                )
        except BaseException as error:  # also if cancelled or interrupted; raised again
            await self._abandon()
            if isinstance(error, TimeoutError):
                await self._explain()
                raise no_tracker(self.address, f" (tried for {self._connect_timeout_sec:g} s)") from None
            raise
        self._renewing = asyncio.create_task(self._renew(), name="renew certificate")
        return self

    async def _renew(self) -> None:
        """Renew this account's certificate for the tracker whenever it is due, while the client is open."""
        store = CredentialStore()
        while True:
            if store.age_sec(self.address) > _FRESH_SEC:
                from fleet.wire.joining import renew_account  # takes 20 ms to import

                await renew_account(self.address, self._open_calls().connection.proof, store)
            await asyncio.sleep(_RENEW_EACH_SEC)

    async def _explain(self) -> None:
        """Explain why the tracker cannot be reached, if the reason can be determined.

        Raises:
            NotJoined: it is another account's, or another fleet's.
        """
        if self._stream is None or not await asyncio.to_thread(is_answered, self.address):
            return
        if self._stream.not_joined is not None:
            raise self._stream.not_joined from None
        from fleet.wire.joining import why_no_tracker

        proof = CredentialStore().find(self.address)
        reason = await asyncio.to_thread(why_no_tracker, self.address, proof) if isinstance(proof, Credentials) else ""
        if reason:
            raise NotJoined(reason) from None

    async def _end_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    async def _abandon(self) -> None:
        if self._running is not None and self._calls is not None:
            calls, self._calls = self._calls, None
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            await calls.close()

    async def _acquire(self, terms: LeaseTerms, on_queued: OnQueued | None, continues: str = "") -> list[Device]:
        stream = self._open_stream()
        if stream.fatal is not None:
            raise stream.fatal
        if len(terms.selectors) > max(stream.most_set_devices, 1):
            raise InvalidRequest(f"the tracker at {self.address} is of an older version and grants no sets; update it")
        found = await self._answer(stream.table.ask(terms, on_queued, continues), terms.wait_timeout_sec)
        return [self._held_device(held) for held in found]

    def _held_device(self, held: HeldLease) -> Device:
        self._keepers[held.name] = asyncio.create_task(self._keep(held), name=f"fleet keep {held.name}")
        device = Device(held, self._open_calls().connection.proof, lambda: self._give_back(held, device))
        self._devices.add(device)
        return device

    @contextlib.asynccontextmanager
    async def _acquired_all(self, terms: LeaseTerms, on_queued: OnQueued | None) -> AsyncGenerator[list[Device], None]:
        devices = await self._acquire(terms, on_queued)
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

    async def _answer(self, waiting: Waiting, wait_timeout_sec: float | None) -> list[HeldLease]:
        """Wait for the tracker's answer. If the wait ends in another way, nothing stays queued or held."""
        table = self._open_stream().table
        local_timeout_sec = None if wait_timeout_sec is None else wait_timeout_sec + _LOCAL_SLACK_SEC
        found: list[HeldLease] | None = None
        try:
            async with asyncio.timeout(local_timeout_sec):
                found = await asyncio.shield(waiting.answer)
        except TimeoutError:
            where = waiting.last.reason if waiting.last is not None else "the tracker is away"
            raise WaitTimeout(
                f"no device for {waiting.terms.wanted!r} within {wait_timeout_sec:g} s; {where}"
            ) from None
        finally:
            table.leave(waiting.request_id)
            if found is None and waiting.answer.done() and waiting.answer.exception() is None:
                for held in waiting.answer.result():  # granted at the very moment we gave up waiting
                    table.release(held.name)
        return found

    async def _keep(self, held: HeldLease) -> None:
        """Renew a lease whenever a third of its life has passed, until it ends."""
        stream = self._open_stream()
        while held.ended is None:
            renewal_sec = math.inf if held.is_at_its_longest else held.ttl_sec / 3
            await asyncio.sleep(max(0.0, min(renewal_sec, held.remaining_sec())))
            if held.ended is None and not held.is_at_its_longest:
                stream.table.send(Renew(held.name))
                if stream.is_up:
                    await _await_last_word(held)
            if held.remaining_sec() <= 0:
                stream.table.expire(held)

    async def _give_back(self, held: HeldLease, device: Device) -> None:
        self._devices.discard(device)
        self._keepers.pop(held.name).cancel()
        stream = self._stream
        if stream is None or held.ended is not None:
            return
        confirmed = stream.table.release(held.name)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RELEASE_TIMEOUT_SEC if stream.is_up else 0):
                await asyncio.shield(confirmed)

    def _open_stream(self) -> TrackerStream:
        if self._stream is None or self._calls is None:
            raise FleetError(_NOT_OPEN)
        return self._stream

    def _open_calls(self) -> TrackerCalls:
        if self._calls is None:
            raise FleetError(_NOT_OPEN)
        return self._calls


async def _await_last_word(held: HeldLease) -> None:
    """After a token's expiry, give a connected tracker a second to report whether its lease lives.

    This process may have stood still, with a renewal unsent or unread; a tracker that stood still with it listens
    before it ends a lease, too. The agent refuses the old token meanwhile.
    """
    for _ in range(_LAST_LOOKS):  # several short waits, as the process may be suspended during one of them
        if held.ended is not None or held.remaining_sec() > 0:
            return
        await asyncio.sleep(_LOOK_SEC)
