"""The client's lease table: its messages on a new stream, and the effect of each event from the tracker."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fleet.client.leases import Acquire, ClientEvent, LeaseTable, Release, Renew, Waiting
from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease, LeaseEnd, YieldWanted, make_terms
from fleet.domain.tokens import Claims, TokenSigner
from fleet.errors import DeviceClosed, LeaseExpired, LeaseRevoked, NoMatchingDevice
from fleet.testing import FakeClock
from fleet.wire.tokens import sign_claims

SIGNER = TokenSigner(Ed25519PrivateKey.generate())
LEASE = Lease(name="leases/1", device_name="devices/x", epoch=1)


def token(issued_sec: float, ttl_sec: float) -> bytes:
    claims = Claims(
        lease_name="leases/1",
        device_name="devices/x",
        epoch=1,
        issued_at_sec=issued_sec,
        expires_at_sec=issued_sec + ttl_sec,
    )
    return sign_claims(claims, SIGNER).SerializeToString()


class Recorder:
    """A lease table with recorded messages and a clock that stands still."""

    def __init__(self) -> None:
        self.said: list[ClientEvent] = []
        self.clock = FakeClock()
        self.table = LeaseTable(send=self.said.append, clock=self.clock)

    @property
    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.said]

    def ask(self) -> Waiting:
        return self.table.ask(make_terms("cpu"))

    def grant(self, request_id: str, name: str = "leases/1") -> None:
        # The tracker's clock is an hour off: it must not matter.
        proof = token(self.clock.now_sec() + 3600, 30)
        self.table.granted(request_id, DeviceStatus(name="devices/x"), replace(LEASE, name=name), proof)


async def test_a_new_stream_repeats_pending_requests_and_renewals() -> None:
    """Waiting requests are repeated with their ids, leases renewed, unconfirmed releases sent again."""
    table = Recorder()
    first, second = table.ask(), table.ask()
    table.grant(first.request_id)
    table.grant(second.request_id, "leases/2")
    third = table.ask()
    table.table.release("leases/2")

    events = table.table.reopen()

    assert events == [Renew("leases/1"), Release("leases/2"), Acquire(third.request_id, third.terms)]


async def test_a_grant_for_a_cancelled_request_is_released() -> None:
    """A device granted while its request was being cancelled is released at once."""
    table = Recorder()
    waiting = table.ask()
    table.table.leave(waiting.request_id)
    table.grant(waiting.request_id)
    assert table.kinds == ["Acquire", "Cancel", "Release"]
    assert table.table.held == {}


async def test_a_repeated_grant_has_no_effect() -> None:
    """The answer to a repeated request may come twice."""
    table = Recorder()
    waiting = table.ask()
    table.grant(waiting.request_id)
    table.grant(waiting.request_id)
    assert table.kinds == ["Acquire"]
    assert list(table.table.held) == ["leases/1"]


async def test_unknown_leases_are_released_and_known_ones_kept() -> None:
    """Leases that the tracker lists are kept when known, released when not."""
    table = Recorder()
    table.grant(table.ask().request_id)
    table.table.release_strays(["leases/1", "leases/9"])
    assert table.kinds == ["Acquire", "Release"]
    assert list(table.table.releasing) == ["leases/9"]


async def test_a_lease_lives_by_the_tokens_span_not_by_anybodys_wall_clock() -> None:
    """Expiry counts from when the token came, for as long as its claims span; a renewal starts it anew."""
    table = Recorder()
    waiting = table.ask()
    table.grant(waiting.request_id)
    (held,) = waiting.answer.result()
    table.clock.advance(20)
    assert held.remaining_sec() == pytest.approx(10)
    table.table.renewed(LEASE, token(0, 30))
    assert held.remaining_sec() == pytest.approx(30)


@pytest.mark.parametrize(
    ("how", "cls"),
    [
        (LeaseEnd.REVOKED, LeaseRevoked),
        (LeaseEnd.EXPIRED, LeaseExpired),
        (LeaseEnd.CLIENT_LOST, LeaseExpired),
        (LeaseEnd.UNKNOWN, LeaseExpired),
    ],
)
async def test_an_ended_lease_stays_ended(how: LeaseEnd, cls: type[Exception]) -> None:
    """The first reason counts; a late renewal revives nothing, and a late demand to give way has no effect."""
    table = Recorder()
    waiting = table.ask()
    table.grant(waiting.request_id)
    (held,) = waiting.answer.result()
    ends: list[str] = []
    held.watch(on_end=lambda: ends.append("ended"), on_renew=lambda: ends.append("renewed"))
    table.table.ended("leases/1", how, "because")
    table.table.yield_wanted(YieldWanted(lease_name="leases/1"))
    held.renew(held.lease, token(0, 30))
    held.end(DeviceClosed("later"))
    assert isinstance(held.ended, cls)
    assert "because" in str(held.ended)
    assert ends == ["ended"]
    assert held.yield_wanted is None


async def test_a_refusal_is_its_own_error() -> None:
    """The class that the tracker names is the class that is raised."""
    table = Recorder()
    waiting = table.ask()
    table.table.refused(waiting.request_id, NoMatchingDevice("there is none"))
    with pytest.raises(NoMatchingDevice, match="there is none"):
        await waiting.answer


@pytest.mark.parametrize(("ends_at_sec", "why"), [(50, "maximum length"), (90, "no renewal")])
async def test_an_expired_lease_gives_the_reason(ends_at_sec: int, why: str) -> None:
    """At the maximum length the renewals were in time, so the advice is another one."""
    table = Recorder()
    waiting = table.ask()
    table.grant(waiting.request_id)
    (held,) = await waiting.answer
    held.lease = replace(held.lease, expires_at_sec=50, ends_at_sec=ends_at_sec)

    table.table.expire(held)

    assert why in str(held.ended)
