"""The client's lease book: what it says on a new stream, and what each event of the tracker changes."""

from __future__ import annotations

import pytest

from fleet import wire
from fleet.client.leases import LeaseBook, Waiting, make_acquire
from fleet.errors import DeviceClosed, LeaseExpired, LeaseRevoked, NoMatchingDevice
from fleet.testing import FakeClock
from fleet.v1 import device_pb2, lease_pb2, lease_service_pb2

TrackerEvent = lease_service_pb2.TrackerEvent


def token(issued_sec: float, ttl_sec: float) -> lease_pb2.Token:
    claims = lease_pb2.LeaseClaims(
        issued_at=wire.timestamp(issued_sec), expires_at=wire.timestamp(issued_sec + ttl_sec)
    )
    return lease_pb2.Token(claims=claims.SerializeToString())


class Book:
    """A lease book whose words are kept, on a clock that stands still."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.clock = FakeClock()
        self.book = LeaseBook(send=lambda event: self.said.append(str(event.WhichOneof("kind"))), clock=self.clock)

    def ask(self) -> Waiting:
        acquire = make_acquire("cpu", priority=0, ttl_sec=30, max_sec=None, wait_timeout_sec=None, purpose="")
        return self.book.ask(acquire)

    def grant(self, request_id: str, name: str = "leases/1") -> None:
        granted = lease_pb2.Granted(
            request_id=request_id,
            lease=lease_pb2.Lease(name=name),
            # The tracker's clock is an hour off: it must not matter.
            token=token(self.clock.now_sec() + 3600, 30),
            device=device_pb2.Device(name="devices/x"),
        )
        self.book.handle(TrackerEvent(granted=granted))

    def end(self, how: lease_service_pb2.LeaseEnd.ValueType) -> None:
        ended = lease_service_pb2.LeaseEnded(lease_name="leases/1", end=how, message="because")
        self.book.handle(TrackerEvent(lease_ended=ended))


async def test_a_new_stream_repeats_what_still_matters() -> None:
    """Waiting requests are repeated with their ids, leases renewed, unconfirmed releases said again."""
    book = Book()
    first, second = book.ask(), book.ask()
    book.grant(first.acquire.request_id)
    book.grant(second.acquire.request_id, "leases/2")
    third = book.ask()
    book.book.release("leases/2")

    events = book.book.reopen()

    assert [str(event.WhichOneof("kind")) for event in events] == ["renew", "release", "acquire"]
    assert events[0].renew.lease_name == "leases/1"
    assert events[1].release.lease_name == "leases/2"
    assert events[2].acquire == third.acquire


async def test_a_grant_that_nobody_waits_for_is_given_back() -> None:
    """A device granted while its request was being cancelled is released at once."""
    book = Book()
    waiting = book.ask()
    book.book.leave(waiting.acquire.request_id)
    book.grant(waiting.acquire.request_id)
    assert book.said == ["acquire", "cancel", "release"]
    assert book.book.held == {}


async def test_a_repeated_grant_changes_nothing() -> None:
    """The answer to a repeated request may come twice."""
    book = Book()
    waiting = book.ask()
    book.grant(waiting.acquire.request_id)
    book.grant(waiting.acquire.request_id)
    assert book.said == ["acquire"]
    assert list(book.book.held) == ["leases/1"]


async def test_strays_are_given_back_but_never_what_is_held() -> None:
    """Leases that the tracker lists are kept when known, released when not."""
    book = Book()
    book.grant(book.ask().acquire.request_id)
    book.book.release_strays(["leases/1", "leases/9"])
    assert book.said == ["acquire", "release"]
    assert list(book.book.releasing) == ["leases/9"]


async def test_a_lease_lives_by_the_tokens_span_not_by_anybodys_wall_clock() -> None:
    """Expiry counts from when the token came, for as long as its claims span; a renewal starts it anew."""
    book = Book()
    waiting = book.ask()
    book.grant(waiting.acquire.request_id)
    held = waiting.answer.result()
    book.clock.advance(20)
    assert held.remaining_sec() == pytest.approx(10)
    renewed = lease_service_pb2.Renewed(lease=lease_pb2.Lease(name="leases/1"), token=token(0, 30))
    book.book.handle(TrackerEvent(renewed=renewed))
    assert held.remaining_sec() == pytest.approx(30)


@pytest.mark.parametrize(
    ("how", "cls"),
    [
        (lease_service_pb2.LEASE_END_REVOKED, LeaseRevoked),
        (lease_service_pb2.LEASE_END_EXPIRED, LeaseExpired),
        (lease_service_pb2.LEASE_END_CLIENT_LOST, LeaseExpired),
        (lease_service_pb2.LEASE_END_UNKNOWN, LeaseExpired),
    ],
)
async def test_an_ended_lease_stays_ended(how: lease_service_pb2.LeaseEnd.ValueType, cls: type[Exception]) -> None:
    """The first reason counts; a late renewal revives nothing."""
    book = Book()
    waiting = book.ask()
    book.grant(waiting.acquire.request_id)
    held = waiting.answer.result()
    ends: list[str] = []
    held.watch(on_end=lambda: ends.append("ended"), on_renew=lambda: ends.append("renewed"))
    book.end(how)
    held.renew(lease_pb2.Lease(name="leases/1"), token(0, 30))
    held.end(DeviceClosed("later"))
    assert isinstance(held.ended, cls)
    assert "because" in str(held.ended)
    assert ends == ["ended"]


async def test_a_refusal_is_its_own_error() -> None:
    """The class that the tracker names is the class that is raised."""
    book = Book()
    waiting = book.ask()
    refused = lease_service_pb2.Refused(
        request_id=waiting.acquire.request_id, error_class="NoMatchingDevice", message="there is none"
    )
    book.book.handle(TrackerEvent(refused=refused))
    with pytest.raises(NoMatchingDevice, match="there is none"):
        await waiting.answer


@pytest.mark.parametrize(("ends_at_sec", "why"), [(50, "maximum length"), (90, "no renewal")])
async def test_an_expired_lease_says_why(ends_at_sec: int, why: str) -> None:
    """At its maximum length nobody was late, and the advice is another one."""
    book = Book()
    waiting = book.ask()
    book.grant(waiting.acquire.request_id)
    held = await waiting.answer
    held.lease.expires_at.CopyFrom(wire.timestamp(50))
    held.lease.ends_at.CopyFrom(wire.timestamp(ends_at_sec))

    book.book.expire(held)

    assert why in str(held.ended)
