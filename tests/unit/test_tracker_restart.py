"""The tracker's state after a restart, and its behaviour while the journal fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.errors import DiskFull
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import BOOT_SHIFT, Durable, LeaseEnd
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import T0, Bench, checked_bench, granted, refused


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


def test_restart_keeps_leases_queue_and_epochs(bench: Bench) -> None:
    """Clients that come back find their lease and their place in the queue; new epochs are larger."""
    bench.attach("a")
    bench.connect("alice", "bob", "carol")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("bob", "r1")
    bench.acquire("carol", "r1")

    bench.restart(away_sec=3.0)
    bench.attach("a")
    bench.connect("carol", "bob", "alice")
    bench.acquire("carol", "r1")
    bench.acquire("bob", "r1")
    effects = bench.apply(ev.Release("alice", lease.name))

    (grant,) = [effect for effect in effects if isinstance(effect, ev.Granted)]
    assert grant.client_id == "bob"
    assert grant.lease.epoch > lease.epoch


def test_waiting_requests_keep_their_order_if_the_clock_is_set_back(bench: Bench) -> None:
    """Requests from before the restart keep their order and precede new ones, although the clock was set back."""
    bench.attach("a")
    bench.connect("alice", "bob", "carol", "dave")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("bob", "r1", wait_timeout_sec=60.0)
    bench.tick(5.0)
    bench.acquire("carol", "r1")

    bench.restart(away_sec=-20 * 86_400.0)
    bench.attach("a")
    bench.connect("alice", "bob", "carol", "dave")
    bench.acquire("dave", "r1")
    bench.acquire("carol", "r1")
    bench.acquire("bob", "r1", wait_timeout_sec=60.0)
    effects = bench.apply(ev.Release("alice", lease.name))
    (first,) = [effect for effect in effects if isinstance(effect, ev.Granted)]
    effects = bench.apply(ev.Release("bob", first.lease.name))
    (second,) = [effect for effect in effects if isinstance(effect, ev.Granted)]

    assert (first.client_id, second.client_id) == ("bob", "carol")


def test_request_that_is_not_repeated_after_a_restart_is_dropped(bench: Bench) -> None:
    """A client that does not return within the grace time loses its requests, and gets no grant meanwhile."""
    bench.attach("a")
    bench.connect("alice")
    bench.acquire("alice", "r0")
    bench.acquire("alice", "r1")

    bench.restart()
    effects = bench.attach("a")
    bench.tick(10.1)

    assert granted(effects) == []
    assert not bench.state.durable().requests


def test_restart_after_the_lease_ran_out_ends_it(bench: Bench) -> None:
    """A lease that expired while the tracker was away is over at the first look."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1", ttl_sec=5.0).lease

    bench.restart(away_sec=6.0)
    (effect,) = bench.tick(0.0)

    assert isinstance(effect, ev.LeaseEnded)
    assert (effect.lease_name, effect.end) == (lease.name, LeaseEnd.EXPIRED)


def test_failed_journal_takes_untold_grants_back(bench: Bench) -> None:
    """Grants that could not be written are revoked; waiting goes on and is served once the journal has recovered."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease

    failed = bench.apply(ev.JournalFailed((lease,), "disk full"))
    meanwhile = bench.acquire("alice", "r2")
    bench.apply(ev.JournalRecovered())
    after = bench.acquire("alice", "r3")

    assert refused(failed) == [("r1", DiskFull)]
    assert not any(isinstance(effect, ev.LeaseEnded) for effect in failed)
    assert refused(meanwhile) == [("r2", DiskFull)]
    assert granted(after) == ["r3"]


def test_recovered_journal_grants_waiting_requests(bench: Bench) -> None:
    """A device freed while nothing could be written goes to the first in line afterwards."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "r1").lease
    bench.acquire("alice", "r2")
    bench.apply(ev.JournalFailed((), "disk full"))
    released = bench.apply(ev.Release("alice", lease.name))

    recovered = bench.apply(ev.JournalRecovered())

    assert granted(released) == []
    assert granted(recovered) == ["r2"]


def test_empty_journal_restores_an_empty_state() -> None:
    """A first start knows nothing and counts epochs from its boot number."""
    state = TrackerState.restore(Durable(boot=3, devices=[], requests=[]), T0)

    assert (state.devices, state.leases, state.last_epoch) == ({}, {}, 3 << BOOT_SHIFT)
