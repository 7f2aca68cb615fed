"""Bids of waiting batch requests reach the leases of their own account. The holders decide."""

from __future__ import annotations

import pytest

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.tracker.core import events as ev
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import Bench, granted


@pytest.fixture
def bench() -> Bench:
    """Two boards and two accounts."""
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    return bench


def ask(
    bench: Bench,
    client: str,
    request_id: str,
    *,
    bid: float,
    name: str = "a",
    priority: int = 0,
    lease_class: LeaseClass = LeaseClass.BATCH,
) -> list[ev.Effect]:
    terms = LeaseTerms(selector=f"name={name}", lease_class=lease_class, ttl_sec=300.0, bid=bid, priority=priority)
    return bench.apply(ev.Acquire(client, request_id, terms))


def told(bench: Bench, effects: list[ev.Effect]) -> list[tuple[str, float]]:
    """Return the request of each notified lease, with the bid."""
    requests = {lease.name: lease.request_id for lease in bench.state.leases.values()}
    return [(requests[each.lease_name], each.bid) for each in effects if isinstance(each, ev.Outbid)]


def test_a_waiting_bid_is_told_to_the_lowest_leases_of_its_account(bench: Bench) -> None:
    """Also to one with a higher bid at its grant: that kept a board for batches worth a tenth of the waiting one."""
    ask(bench, "alice", "low", bid=1.0, name="a")
    ask(bench, "alice", "high", bid=2.0, name="b")

    assert told(bench, ask(bench, "alice", "waits", bid=0.5, name="a|b")) == [("low", 0.5), ("high", 0.5)]


def test_few_leases_are_told_of_one_request() -> None:
    """A release costs its holder a request and a session."""
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.attach(*"abcdef")
    bench.connect("alice")
    for bid, board in enumerate("fedcba"):
        ask(bench, "alice", board, bid=1.0 + bid, name=board)

    found = told(bench, ask(bench, "alice", "waits", bid=9.0, name="a|b|c|d|e|f"))

    assert [request for request, _ in found] == list("fedc")


def test_a_bid_is_told_to_no_other_account(bench: Bench) -> None:
    """Bids order the requests of one account alone."""
    ask(bench, "alice", "held", bid=1.0)

    assert told(bench, ask(bench, "bob", "waits", bid=9.0)) == []


@pytest.mark.parametrize("lease_class", [LeaseClass.NORMAL, LeaseClass.INTERACTIVE])
def test_only_batch_requests_are_told(bench: Bench, lease_class: LeaseClass) -> None:
    """Higher classes have a demand of their own, and a lease of theirs is not told anything."""
    ask(bench, "alice", "held", bid=1.0)
    ask(bench, "alice", "above", bid=1.0, name="b", lease_class=lease_class)

    assert told(bench, ask(bench, "alice", "waits", bid=9.0, lease_class=lease_class)) == []
    assert told(bench, ask(bench, "alice", "waits too", bid=9.0, name="b")) == []


def test_a_lease_of_higher_priority_is_not_told(bench: Bench) -> None:
    """Priority comes before the bid."""
    ask(bench, "alice", "held", bid=1.0, priority=3)

    assert told(bench, ask(bench, "alice", "waits", bid=9.0, priority=2)) == []
    assert told(bench, ask(bench, "alice", "waits too", bid=9.0, priority=3)) == [("held", 9.0)]


def test_a_new_lease_is_told_the_highest_bid_behind_it(bench: Bench) -> None:
    """Its own bid falls from batch to batch, perhaps below the waiting ones."""
    ask(bench, "alice", "first", bid=5.0)
    ask(bench, "alice", "second", bid=4.0)
    ask(bench, "alice", "third", bid=3.0)
    ask(bench, "bob", "other", bid=9.0, name="b")

    effects = bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["first"].name))

    assert granted(effects) == ["second"]
    assert told(bench, effects) == [("second", 3.0)]


def test_the_higher_bid_gets_the_device_when_both_ask_again(bench: Bench) -> None:
    """A holder that was outbid releases the lease and asks with its own bid."""
    ask(bench, "alice", "held", bid=5.0)
    ask(bench, "alice", "waits", bid=4.0)

    assert granted(bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["held"].name))) == ["waits"]
    assert told(bench, ask(bench, "alice", "again", bid=1.0)) == [("waits", 1.0)]
