"""Renewal and end of leases, event by event."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEnd
from tests.unit.tracker_bench import T0, Bench, checked_bench, granted


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


def test_renewal_extends_to_the_maximum_and_no_further(bench: Bench) -> None:
    """expires_at = min(now + ttl, ends_at), and at ends_at the lease is over."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0, max_sec=15.0).lease
    bench.now += 8

    (renewed,) = bench.apply(ev.Renew("alice", lease.name))
    effects = bench.tick(7.1)

    assert isinstance(renewed, ev.Renewed)
    assert lease.expires_at_sec == T0 + 15
    ended = [effect for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert [(effect.end, "maximum length" in effect.message) for effect in ended] == [(LeaseEnd.EXPIRED, True)]


def test_renewal_at_the_very_end_comes_too_late(bench: Bench) -> None:
    """A lease that has expired ends before its renewal is processed, and stays ended."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0).lease
    bench.now += 10

    effects = bench.apply(ev.Renew("alice", lease.name))

    ends = [effect.end for effect in effects if isinstance(effect, ev.LeaseEnded)]
    assert ends == [LeaseEnd.EXPIRED, LeaseEnd.EXPIRED]
    assert not bench.state.leases


@pytest.mark.parametrize(("asked_sec", "expected_sec"), [(0.0, 30.0), (0.5, 2.0), (5.0, 5.0), (1e6, 300.0)])
def test_ttl_is_bounded(bench: Bench, asked_sec: float, expected_sec: float) -> None:
    """The tracker's limits hold for any requested time."""
    bench.attach("a")
    bench.connect("alice")

    assert bench.grant("alice", "r1", ttl_sec=asked_sec).lease.terms.ttl_sec == expected_sec


def test_release_is_idempotent_and_remembers_why(bench: Bench) -> None:
    """A second release tells the end of the first; a lease of another client is unknown."""
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    other = bench.grant("bob", "r1").lease
    bench.apply(ev.Release("alice", lease.name))

    (again,) = bench.apply(ev.Release("alice", lease.name))
    (foreign,) = bench.apply(ev.Release("alice", other.name))

    assert isinstance(again, ev.LeaseEnded)
    assert again.end is LeaseEnd.RELEASED
    assert isinstance(foreign, ev.LeaseEnded)
    assert foreign.end is LeaseEnd.UNKNOWN
    assert other.name in bench.state.leases


def test_every_end_of_a_lease_fences_its_device(bench: Bench) -> None:
    """Release, expiry and revocation each tell the agent before the device is granted again."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2")

    effects = bench.apply(ev.Revoke(lease.name, "repair"))

    kinds = [type(effect) for effect in effects]
    assert kinds == [ev.Fence, ev.LeaseEnded, ev.Granted, ev.Revoked]
    assert effects[0] == ev.Fence("agent", "devices/a", lease.epoch)


def test_lost_client_leaves_the_queue_at_once_and_its_leases_after_the_grace_time(bench: Bench) -> None:
    """Requests of a lost stream do not delay others; its lease waits for a reconnect."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2", priority=9)
    bench.acquire("bob", "r1")

    bench.apply(ev.ClientLost("alice"))
    before = bench.tick(9.9)
    after = bench.tick(0.2)

    assert granted(before) == []
    assert granted(after) == ["r1"]
    assert lease.name not in bench.state.leases


def test_client_that_comes_back_in_time_keeps_its_leases(bench: Bench) -> None:
    """The welcome lists the leases, and the grace time is cancelled."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.apply(ev.ClientLost("alice"))
    bench.now += 5

    (welcome,) = bench.apply(ev.ClientConnected("alice", "alice@host"))
    bench.tick(6)

    assert welcome == ev.Welcomed("alice", (lease,), "alice@host", may_ask_for_others=False)
    assert lease.name in bench.state.leases


def test_time_that_goes_back_ends_no_lease_early_or_twice(bench: Bench) -> None:
    """The latest time ever seen counts."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=10.0).lease
    bench.tick(6)
    bench.now -= 100

    bench.apply(ev.Renew("alice", lease.name))

    assert lease.expires_at_sec == T0 + 16
