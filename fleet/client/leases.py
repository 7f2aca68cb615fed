"""Leases and requests of one client, updated by events from the tracker.

No I/O and no messages: the stream calls the table for each event of the tracker, and the table replies through `send`.
After a reconnect, `LeaseTable.reopen` returns the first events of the new stream.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fleet.base.clock import Clock
from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease, LeaseEnd, LeaseTerms, PendingRequest, YieldWanted
from fleet.errors import Cancelled, DeviceClosed, FleetError, LeaseExpired, LeaseRevoked, LeaseYielded
from fleet.wire.tokens import read_claims

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acquire:
    """Request a device."""

    request_id: str
    terms: LeaseTerms
    continues: str = ""
    """Name of the lease that gave way."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Leave the queue."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew a lease."""

    lease_name: str


@dataclass(frozen=True, slots=True)
class Release:
    """Release a lease."""

    lease_name: str


_END_ERRORS: Mapping[LeaseEnd, type[FleetError]] = {
    LeaseEnd.REVOKED: LeaseRevoked,
    LeaseEnd.RELEASED: LeaseRevoked,
    LeaseEnd.YIELDED: LeaseYielded,
}

ClientEvent = Acquire | Cancel | Renew | Release
"""Event of a client for its tracker."""

OnQueued = Callable[[PendingRequest], object]
"""Called with the request's position and reason whenever the tracker tells them."""


class HeldLease:
    """A granted lease with its newest token, until it ends."""

    def __init__(self, device: DeviceStatus, lease: Lease, token: bytes, clock: Clock) -> None:
        self.device = device
        self.lease = lease
        self.token = token
        self.ended: FleetError | None = None
        """Why the lease is over; None while it lives."""

        self.yield_wanted: YieldWanted | None = None
        """The tracker's demand to give the lease back, if it made one."""

        self.outbid = 0.0
        """Highest bid of the account's own requests that waited for the device since the grant."""

        self.ttl_sec = 0.0
        self._clock = clock
        self._expires_sec = 0.0
        self._on_end: list[Callable[[], None]] = []
        self._on_renew: list[Callable[[], None]] = []
        self._on_yield: list[Callable[[], None]] = []
        self._read_times()

    @property
    def name(self) -> str:
        return self.lease.name

    @property
    def is_at_its_longest(self) -> bool:
        """True if no renewal can extend it further."""
        return 0 < self.lease.ends_at_sec == self.lease.expires_at_sec

    def remaining_sec(self) -> float:
        """Remaining life of the token if the tracker stays silent [s], on this process's clock."""
        return self._expires_sec - self._clock.monotonic_sec()

    def renew(self, lease: Lease, token: bytes) -> None:
        """Store a newer token of the same lease."""
        if self.ended is not None:
            return
        self.lease, self.token = lease, token
        self._read_times()
        for callback in list(self._on_renew):
            callback()

    def end(self, error: FleetError) -> None:
        """Mark the lease as ended; only the first reason counts."""
        if self.ended is not None:
            return
        self.ended = error
        for callback in list(self._on_end):
            callback()

    def give_way(self, wanted: YieldWanted) -> None:
        """Record that the lease has to give way; only the first demand counts."""
        if self.yield_wanted is None and self.ended is None:
            self.yield_wanted = wanted
            for callback in list(self._on_yield):
                callback()

    def watch_yield(self, on_yield: Callable[[], None]) -> None:
        """Register a callback, called on the event loop when the lease has to give way, or at once if it has to."""
        self._on_yield.append(on_yield)
        if self.yield_wanted is not None:
            on_yield()

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Register callbacks, called on the event loop at the lease's end and after each renewal."""
        self._on_end.append(on_end)
        self._on_renew.append(on_renew)
        if self.ended is not None:
            on_end()

    def _read_times(self) -> None:
        # The claims carry the tracker's clock at signing, so their difference does not depend on our clock.
        claims = read_claims(self.token)
        self.ttl_sec = claims.expires_at_sec - claims.issued_at_sec
        self._expires_sec = self._clock.monotonic_sec() + self.ttl_sec


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A request without an answer yet."""

    request_id: str
    terms: LeaseTerms
    answer: asyncio.Future[list[HeldLease]]
    """One lease for each device of a set."""
    continues: str = ""
    on_queued: OnQueued | None = None
    last: PendingRequest | None = None
    """The tracker's latest word on where it stands in the queue."""
    parts: dict[int, HeldLease] = field(default_factory=dict)
    """Leases received so far, by the number of the device in a set."""


@dataclass(kw_only=True)
class LeaseTable:
    """All leases and waiting requests of one client."""

    send: Callable[[ClientEvent], None]
    """Sends an event to the tracker if a stream is open; drops it otherwise."""

    clock: Clock
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """Waiting requests by id."""

    held: dict[str, HeldLease] = field(default_factory=dict)
    """Held leases by name."""

    releasing: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """Released leases that the tracker has not confirmed, by name."""

    def ask(self, terms: LeaseTerms, on_queued: OnQueued | None = None, continues: str = "") -> Waiting:
        """Request a device; the answer arrives in the returned request's future."""
        answer: asyncio.Future[list[HeldLease]] = asyncio.get_running_loop().create_future()
        waiting = Waiting(
            request_id=uuid.uuid4().hex, terms=terms, answer=answer, continues=continues, on_queued=on_queued
        )
        self.waiting[waiting.request_id] = waiting
        self.send(Acquire(waiting.request_id, terms, continues))
        return waiting

    def leave(self, request_id: str) -> None:
        """Leave the queue, or release a lease granted in the meantime at once."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is not None:
            self.send(Cancel(request_id))
            for part in waiting.parts.values():
                self.release(part.name)

    def close(self) -> None:
        """Close the table: waiting calls fail because the client was closed."""
        for request_id, waiting in list(self.waiting.items()):
            self.leave(request_id)
            if not waiting.answer.done():
                waiting.answer.set_exception(
                    Cancelled(f"the client was closed while it waited for {waiting.terms.wanted!r}")
                )

    def fail(self, error: FleetError) -> None:
        """End all leases and requests: the tracker refuses this client permanently."""
        for request_id in list(self.waiting):
            self.refused(request_id, error)
        for held in list(self.held.values()):
            held.end(error)
        for done in self.releasing.values():
            if not done.done():
                done.set_result(None)
        self.held.clear()
        self.releasing.clear()

    def release(self, name: str) -> asyncio.Future[None]:
        """Release a lease; the future is done when the tracker has confirmed it. Idempotent."""
        held = self.held.pop(name, None)
        if held is not None:
            held.end(DeviceClosed(f"{held.device.name} was given back ({name}); acquire it again to go on"))
        done = self.releasing.get(name)
        if done is None:
            done = self.releasing[name] = asyncio.get_running_loop().create_future()
        self.send(Release(name))
        return done

    def expire(self, held: HeldLease) -> None:
        """End a lease whose token expired while the tracker was unreachable."""
        self.held.pop(held.name, None)
        why = f"no renewal came through for {held.ttl_sec:.0f} s"
        advice = "acquire again, with a longer ttl if the tracker is away for long"
        if held.is_at_its_longest:
            why, advice = "it reached its maximum length", "acquire again, for longer if that is allowed"
        held.end(LeaseExpired(f"{held.name} on {held.device.name} expired: {why}; {advice}"))

    def reopen(self) -> list[ClientEvent]:
        """Return the first events of a new stream: waiting requests, renewals, and releases not yet confirmed."""
        asks = (Acquire(waiting.request_id, waiting.terms, waiting.continues) for waiting in self.waiting.values())
        return [*map(Renew, self.held), *map(Release, self.releasing), *asks]

    def release_strays(self, names: list[str]) -> None:
        """Release leases that the tracker lists but this client does not know: their grant was lost with an older
        stream.
        """
        for name in names:
            if name not in self.held and name not in self.releasing:
                logger.info("gave back a lease that nobody waits for", extra={"lease": name})
                self.release(name)

    def queued(self, request: PendingRequest) -> None:
        """Record a request's position in the queue."""
        waiting = self.waiting.get(request.request_id)
        if waiting is None:
            return
        waiting.last = request
        if waiting.on_queued is not None:
            waiting.on_queued(request)

    def granted(self, request_id: str, device: DeviceStatus, lease: Lease, token: bytes, member: int = 0) -> None:
        """Accept a granted device, or release it if nobody waits for it any more.

        Args:
            member: number of the device in a set; the request is answered once all have come.
        """
        if lease.name in self.held:  # repeated after a reconnect
            return
        waiting = self.waiting.get(request_id)
        if waiting is None or waiting.answer.done():
            self.waiting.pop(request_id, None)
            self.release(lease.name)
            return
        waiting.parts[member] = HeldLease(device, lease, token, self.clock)
        if len(waiting.parts) < len(waiting.terms.selectors):
            return
        del self.waiting[request_id]
        found = [waiting.parts[number] for number in sorted(waiting.parts)]
        self.held.update((held.name, held) for held in found)
        waiting.answer.set_result(found)

    def refused(self, request_id: str, error: FleetError) -> None:
        """Fail the waiting call with the tracker's reason."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is not None and not waiting.answer.done():
            waiting.answer.set_exception(error)

    def renewed(self, lease: Lease, token: bytes) -> None:
        """Store a newer token."""
        held = self.held.get(lease.name)
        if held is not None:
            held.renew(lease, token)

    def yield_wanted(self, wanted: YieldWanted) -> None:
        """Record that a lease has to give way."""
        held = self.held.get(wanted.lease_name)
        if held is not None:
            held.give_way(wanted)

    def outbid(self, lease_name: str, bid: float) -> None:
        """Record that a request of the same account waits for the device of a lease."""
        held = self.held.get(lease_name)
        if held is not None:
            held.outbid = max(held.outbid, bid)

    def ended(self, lease_name: str, end: LeaseEnd, message: str) -> None:
        """End a lease that the tracker reports as ended."""
        done = self.releasing.pop(lease_name, None)
        if done is not None and not done.done():
            done.set_result(None)
        held = self.held.pop(lease_name, None)
        if held is not None:
            held.end(_end_error(held, end, message))
        for waiting in self.waiting.values():
            waiting.parts = {number: part for number, part in waiting.parts.items() if part.name != lease_name}


def _end_error(held: HeldLease, end: LeaseEnd, message: str) -> FleetError:
    cls = _END_ERRORS.get(end, LeaseExpired)
    how = end.lower().replace("_", " ")
    return cls(f"{held.name} on {held.device.name} is over ({how}): {message or 'no reason given'}")
