"""What one client holds and waits for, and what each event of the tracker changes about it.

No I/O: the stream feeds events in through `LeaseBook.handle`, what has to be said to the tracker leaves through `send`.
After a reconnect `LeaseBook.reopen` says what the new stream has to start with.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from fleet import wire
from fleet.clock import Clock
from fleet.errors import Cancelled, DeviceClosed, FleetError, LeaseError, LeaseExpired, LeaseRevoked, error_classes
from fleet.v1 import device_pb2, lease_pb2, lease_service_pb2

logger = logging.getLogger(__name__)

ClientEvent = lease_service_pb2.ClientEvent
OnQueued = Callable[[lease_pb2.PendingRequest], object]
"""Called with the request's position and reason whenever the tracker tells them."""


class HeldLease:
    """A granted lease with its newest token, until it ends."""

    def __init__(self, granted: lease_pb2.Granted, clock: Clock) -> None:
        self.device: device_pb2.Device = granted.device
        self.lease: lease_pb2.Lease = granted.lease
        self.token: lease_pb2.Token = granted.token
        self.ended: FleetError | None = None
        """Why the lease is over; None while it lives."""

        self.ttl_sec = 0.0
        self._clock = clock
        self._expires_sec = 0.0
        self._on_end: list[Callable[[], None]] = []
        self._on_renew: list[Callable[[], None]] = []
        self._read_times()

    @property
    def name(self) -> str:
        return self.lease.name

    @property
    def is_at_its_longest(self) -> bool:
        """Whether no renewal can make it last longer."""
        return self.lease.HasField("ends_at") and self.lease.expires_at == self.lease.ends_at

    def remaining_sec(self) -> float:
        """How long the token lives on if nothing comes from the tracker [s], on this process's clock."""
        return self._expires_sec - self._clock.monotonic_sec()

    def renew(self, lease: lease_pb2.Lease, token: lease_pb2.Token) -> None:
        """Take a newer token of the same lease."""
        if self.ended is not None:
            return
        self.lease, self.token = lease, token
        self._read_times()
        for callback in list(self._on_renew):
            callback()

    def end(self, error: FleetError) -> None:
        """Mark the lease as over; only the first reason counts."""
        if self.ended is not None:
            return
        self.ended = error
        for callback in list(self._on_end):
            callback()

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Have these called, on the event loop, when the lease ends and after each renewal."""
        self._on_end.append(on_end)
        self._on_renew.append(on_renew)
        if self.ended is not None:
            on_end()

    def _read_times(self) -> None:
        # The claims carry the tracker's clock at signing: their difference needs no clock that agrees with it.
        claims = lease_pb2.LeaseClaims.FromString(self.token.claims)
        self.ttl_sec = wire.timestamp_sec(claims.expires_at) - wire.timestamp_sec(claims.issued_at)
        self._expires_sec = self._clock.monotonic_sec() + self.ttl_sec


@dataclass(slots=True, kw_only=True)
class Waiting:
    """A request that has no answer yet."""

    acquire: lease_pb2.Acquire
    answer: asyncio.Future[HeldLease]
    on_queued: OnQueued | None = None
    last: lease_pb2.PendingRequest | None = None
    """The tracker's latest word on where it stands in the queue."""


@dataclass(kw_only=True)
class LeaseBook:
    """All leases and waiting requests of one client."""

    send: Callable[[ClientEvent], None]
    """Says something to the tracker if a stream is open, forgets it otherwise."""

    clock: Clock
    waiting: dict[str, Waiting] = field(default_factory=dict)
    """By request id."""

    held: dict[str, HeldLease] = field(default_factory=dict)
    """By lease name."""

    releasing: dict[str, asyncio.Future[None]] = field(default_factory=dict)
    """Leases given back whose end the tracker has not confirmed, by name."""

    def ask(self, acquire: lease_pb2.Acquire, on_queued: OnQueued | None = None) -> Waiting:
        """Ask for a device; the answer arrives in the returned request's future."""
        waiting = Waiting(acquire=acquire, answer=asyncio.get_running_loop().create_future(), on_queued=on_queued)
        self.waiting[acquire.request_id] = waiting
        self.send(ClientEvent(acquire=acquire))
        return waiting

    def leave(self, request_id: str) -> None:
        """Leave the queue, or give back at once what was granted in the meantime."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is not None:
            self.send(ClientEvent(cancel=lease_service_pb2.Cancel(request_id=request_id)))

    def close(self) -> None:
        """Leave the queue for good: whoever waits hears that the client was closed."""
        for request_id, waiting in list(self.waiting.items()):
            self.leave(request_id)
            if not waiting.answer.done():
                waiting.answer.set_exception(
                    Cancelled(f"the client was closed while it waited for {waiting.acquire.selector!r}")
                )

    def release(self, name: str) -> asyncio.Future[None]:
        """Give a lease back; the future is done when the tracker has confirmed it. Idempotent."""
        held = self.held.pop(name, None)
        if held is not None:
            held.end(DeviceClosed(f"{held.device.name} was given back ({name}); acquire it again to go on"))
        done = self.releasing.get(name)
        if done is None:
            done = self.releasing[name] = asyncio.get_running_loop().create_future()
        self.send(_release(name))
        return done

    def expire(self, held: HeldLease) -> None:
        """End a lease whose token ran out while the tracker was away."""
        self.held.pop(held.name, None)
        why = f"no renewal came through for {held.ttl_sec:.0f} s"
        advice = "acquire again, with a longer ttl if the tracker is away for long"
        if held.is_at_its_longest:
            why, advice = "it reached its maximum length", "acquire again, for longer if that is allowed"
        held.end(LeaseExpired(f"{held.name} on {held.device.name} expired: {why}; {advice}"))

    def reopen(self) -> list[ClientEvent]:
        """Return what a new stream has to start with: waiting requests, renewals, and releases not yet confirmed."""
        renewals = (ClientEvent(renew=lease_service_pb2.Renew(lease_name=name)) for name in self.held)
        asks = (ClientEvent(acquire=waiting.acquire) for waiting in self.waiting.values())
        return [*renewals, *map(_release, self.releasing), *asks]

    def handle(self, event: lease_service_pb2.TrackerEvent) -> None:
        """Take in one event of the tracker."""
        match event.WhichOneof("kind"):
            case "queued":
                self._queued(event.queued)
            case "granted":
                self._granted(event.granted)
            case "refused":
                self._refused(event.refused)
            case "renewed":
                held = self.held.get(event.renewed.lease.name)
                if held is not None:
                    held.renew(event.renewed.lease, event.renewed.token)
            case "lease_ended":
                self._ended(event.lease_ended)
            case _:  # "welcome" is the stream's; a newer tracker may say more
                return

    def release_strays(self, names: list[str]) -> None:
        """Give back leases that the tracker lists and nobody here knows: their grant was lost with an older stream."""
        for name in names:
            if name not in self.held and name not in self.releasing:
                logger.info("gave back a lease that nobody waits for", extra={"lease": name})
                self.release(name)

    def _queued(self, queued: lease_pb2.PendingRequest) -> None:
        waiting = self.waiting.get(queued.request_id)
        if waiting is None:
            return
        waiting.last = queued
        if waiting.on_queued is not None:
            waiting.on_queued(queued)

    def _granted(self, granted: lease_pb2.Granted) -> None:
        if granted.lease.name in self.held:  # repeated after a reconnect
            return
        waiting = self.waiting.pop(granted.request_id, None)
        if waiting is None or waiting.answer.done():
            self.release(granted.lease.name)
            return
        held = self.held[granted.lease.name] = HeldLease(granted, self.clock)
        waiting.answer.set_result(held)

    def _refused(self, refused: lease_service_pb2.Refused) -> None:
        waiting = self.waiting.pop(refused.request_id, None)
        if waiting is None or waiting.answer.done():
            return
        cls = error_classes().get(refused.error_class, LeaseError)
        waiting.answer.set_exception(cls(refused.message))

    def _ended(self, ended: lease_service_pb2.LeaseEnded) -> None:
        done = self.releasing.pop(ended.lease_name, None)
        if done is not None and not done.done():
            done.set_result(None)
        held = self.held.pop(ended.lease_name, None)
        if held is not None:
            held.end(_end_error(ended, held))


def make_acquire(
    selector: str,
    *,
    priority: int,
    ttl_sec: float,
    max_sec: float | None,
    wait_timeout_sec: float | None,
    purpose: str,
    prefer: str = "",
) -> lease_pb2.Acquire:
    """Return the message that asks for a device, with a fresh request id."""
    return lease_pb2.Acquire(
        request_id=uuid.uuid4().hex,
        selector=selector,
        priority=priority,
        ttl=wire.duration(ttl_sec),
        max_duration=_optional_duration(max_sec),
        wait_timeout=_optional_duration(wait_timeout_sec),
        purpose=purpose,
        prefer=prefer,
    )


def _optional_duration(sec: float | None) -> Duration | None:
    return None if sec is None else wire.duration(sec)


def _release(name: str) -> ClientEvent:
    return ClientEvent(release=lease_service_pb2.Release(lease_name=name))


def _end_error(ended: lease_service_pb2.LeaseEnded, held: HeldLease) -> FleetError:
    cls = {
        lease_service_pb2.LEASE_END_REVOKED: LeaseRevoked,
        lease_service_pb2.LEASE_END_RELEASED: LeaseRevoked,
    }.get(ended.end, LeaseExpired)
    is_known = ended.end in lease_service_pb2.LeaseEnd.values()  # a newer tracker may know more ways
    how = lease_service_pb2.LeaseEnd.Name(ended.end) if is_known else "ended"
    how = how.removeprefix("LEASE_END_").lower().replace("_", " ")
    return cls(f"{held.name} on {held.device.name} is over ({how}): {ended.message or 'no reason given'}")
