"""Batch leases give way to higher classes at once, and to accounts with less use after their slice."""

from __future__ import annotations

import pytest

from fleet.domain.leases import LeaseClass, LeaseEnd, LeaseTerms
from fleet.tracker.core import events as ev
from fleet.tracker.core.share_policy import SharePolicy
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import Bench, granted

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE
SLICE_SEC, GRACE_SEC = SharePolicy().slice_sec, SharePolicy().yield_grace_sec


@pytest.fixture
def bench() -> Bench:
    """Two boards and three accounts."""
    bench = Bench()
    bench.state = TrackerState(boot=7)
    bench.attach("a", "b")
    bench.connect("alice", "bob", "carol")
    return bench


def ask(
    bench: Bench,
    client: str,
    request_id: str,
    lease_class: LeaseClass = BATCH,
    selector: str = "cpu",
    continues: str = "",
) -> list[ev.Effect]:
    terms = LeaseTerms(selector=selector, lease_class=lease_class, ttl_sec=300.0)
    return bench.apply(ev.Acquire(client, request_id, terms, continues))


def wanted(effects: list[ev.Effect]) -> list[tuple[str, str]]:
    """Return the client and the request of each lease that was asked to give way."""
    return [
        (effect.client_id, effect.wanted.request_key[1]) for effect in effects if isinstance(effect, ev.YieldWanted)
    ]


def keep(bench: Bench, sec: float) -> list[ev.Effect]:
    """Let time pass while all holders renew."""
    effects: list[ev.Effect] = []
    for _ in range(int(sec // 10)):
        bench.now += 10.0
        for lease in list(bench.state.leases.values()):
            effects += bench.apply(ev.Renew(lease.client_id, lease.name))
    return effects


def lease_of(bench: Bench, client: str, request_id: str) -> str:
    return bench.state.clients[client].leases[request_id].name


@pytest.mark.parametrize("lease_class", [NORMAL, INTERACTIVE])
def test_a_higher_class_asks_one_batch_lease_at_once(bench: Bench, lease_class: LeaseClass) -> None:
    """The lease of the account with the most use is asked; its device goes to the request."""
    ask(bench, "alice", "a0")
    keep(bench, 700.0)
    ask(bench, "bob", "b0")

    assert wanted(ask(bench, "carol", "c0", lease_class)) == [("alice", "c0")]
    assert granted(bench.apply(ev.Release("alice", lease_of(bench, "alice", "a0")))) == ["c0"]


def test_a_lease_that_does_not_give_way_ends_after_its_grace(bench: Bench) -> None:
    ask(bench, "alice", "a0", selector="name=a")
    name = lease_of(bench, "alice", "a0")
    ask(bench, "carol", "c0", NORMAL, selector="name=a")

    assert granted(bench.tick(GRACE_SEC - 0.1)) == []
    effects = bench.tick(0.2)

    (ended,) = (effect for effect in effects if isinstance(effect, ev.LeaseEnded))
    assert (ended.lease_name, ended.end) == (name, LeaseEnd.YIELDED)
    assert granted(effects) == ["c0"]


@pytest.mark.parametrize("lease_class", [NORMAL, INTERACTIVE])
def test_interactive_and_normal_leases_are_never_asked(bench: Bench, lease_class: LeaseClass) -> None:
    ask(bench, "alice", "a0", lease_class, selector="name=a")
    keep(bench, 2 * SLICE_SEC)

    assert wanted(ask(bench, "carol", "c0", INTERACTIVE, selector="name=a")) == []
    assert wanted(keep(bench, 2 * SLICE_SEC)) == []


def test_a_batch_lease_keeps_its_slice_beside_other_batch_requests(bench: Bench) -> None:
    """After the slice, an account with less use gets the device; one with more does not."""
    ask(bench, "alice", "a0", selector="name=a")
    assert wanted(ask(bench, "carol", "c0", selector="name=a")) == []

    assert wanted(keep(bench, SLICE_SEC - 20.0)) == []
    assert wanted(keep(bench, 100.0)) == [("alice", "c0")]


def test_an_account_with_more_use_waits_for_the_end_of_a_batch_lease(bench: Bench) -> None:
    ask(bench, "carol", "c1", selector="name=b")
    keep(bench, 4 * SLICE_SEC)
    bench.apply(ev.Release("carol", lease_of(bench, "carol", "c1")))
    ask(bench, "alice", "a0", selector="name=a")
    ask(bench, "carol", "c0", selector="name=a")

    assert wanted(keep(bench, 2 * SLICE_SEC)) == []


def test_each_request_asks_one_lease_and_each_lease_is_asked_once(bench: Bench) -> None:
    ask(bench, "alice", "a0")
    ask(bench, "alice", "a1")

    first = wanted(ask(bench, "carol", "c0", NORMAL))
    second = wanted(ask(bench, "bob", "b0", NORMAL))
    third = wanted(ask(bench, "bob", "b1", NORMAL))

    assert [first, second, third] == [[("alice", "c0")], [("alice", "b0")], []]
    assert {entry.lease_name for entry in bench.state.yields.values()} == set(bench.state.batch)


def test_a_request_that_leaves_the_queue_demands_nothing(bench: Bench) -> None:
    """The lease lives on beyond the grace."""
    ask(bench, "alice", "a0", selector="name=a")
    ask(bench, "carol", "c0", NORMAL, selector="name=a")
    bench.apply(ev.Cancel("carol", "c0"))

    effects = bench.tick(GRACE_SEC + 1.0)

    assert not bench.state.yields
    assert effects == []


def test_a_client_that_connects_again_is_told_again(bench: Bench) -> None:
    ask(bench, "alice", "a0", selector="name=a")
    ask(bench, "carol", "c0", NORMAL, selector="name=a")

    assert wanted(bench.apply(ev.ClientConnected("alice", "alice@host"))) == [("alice", "c0")]


def test_requests_ask_again_after_a_restart(bench: Bench) -> None:
    ask(bench, "alice", "a0", selector="name=a")
    ask(bench, "carol", "c0", NORMAL, selector="name=a")

    bench.restart()
    bench.connect("alice", "bob", "carol")

    assert wanted(ask(bench, "carol", "c0", NORMAL, selector="name=a")) == [("alice", "c0")]


@pytest.mark.parametrize("client", ["alice", "bob"])
def test_a_request_that_continues_its_clients_lease_keeps_the_age(bench: Bench, client: str) -> None:
    """Giving way costs no place among the requests of one's own account; another client's lease brings none."""
    ask(bench, "alice", "a0", selector="name=a")
    asked_at_sec, name = bench.now, lease_of(bench, "alice", "a0")
    keep(bench, 60.0)
    ask(bench, "carol", "c0", NORMAL, selector="name=a")
    bench.apply(ev.Release("alice", name))

    (queued,) = ask(bench, client, "next", selector="name=a", continues=name)

    assert isinstance(queued, ev.Queued)
    assert queued.request.asked_at_sec == (asked_at_sec if client == "alice" else bench.now)


def test_a_used_up_quota_asks_nobody(bench: Bench) -> None:
    bench.attach("a", "b", "c")
    ask(bench, "carol", "c0", INTERACTIVE)
    ask(bench, "carol", "c1", INTERACTIVE)
    ask(bench, "alice", "a0")

    assert wanted(ask(bench, "carol", "c2", INTERACTIVE)) == []
