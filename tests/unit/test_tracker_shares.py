"""Turns of accounts: classes, recent use, quotas, starvation, and what priority and bid may change."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.waits import QuotaLimit, WaitReason
from fleet.errors import InvalidRequest
from fleet.tracker.core import events as ev
from fleet.tracker.core.accounts import DAY_SEC, Accounts
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import Durable, LeaseEntry, TrackerLimits, UseEntry
from fleet.tracker.core.share_policy import Quota, SharePolicy
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import T0, Bench, granted

HOUR_SEC = 3_600.0
BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE


@pytest.fixture
def bench() -> Bench:
    """One board and three accounts."""
    bench = Bench()
    bench.state = TrackerState(boot=7, limits=TrackerLimits(max_duration_sec=100 * HOUR_SEC))
    bench.attach("a")
    bench.connect("alice", "bob", "carol")
    return bench


def held(bench: Bench) -> LeaseEntry:
    lease = bench.state.devices["devices/a"].lease
    assert lease is not None
    return lease


def serve_next(bench: Bench, after_sec: float = 60.0) -> str:
    """End the lease of the board after a time and return the next request that gets it."""
    bench.now += after_sec
    lease = held(bench)
    lease.expires_at_sec = max(lease.expires_at_sec, bench.now + 1.0)
    (request_id,) = granted(bench.apply(ev.Release(lease.client_id, lease.name)))
    return request_id


def ask(bench: Bench, client: str, *request_ids: str, lease_class: LeaseClass = NORMAL, **options: float) -> None:
    for request_id in request_ids:
        terms = LeaseTerms(selector="cpu", lease_class=lease_class, ttl_sec=300.0, **options)  # type: ignore[arg-type]
        bench.apply(ev.Acquire(client, request_id, terms))


def used_sec(bench: Bench, client: str) -> float:
    accounts = bench.state.accounts
    return accounts.used_sec(accounts.account(f"{client}@host"), bench.now)


def test_a_newcomer_is_served_before_the_backlog_of_another(bench: Bench) -> None:
    ask(bench, "alice", "a0", "a1", "a2", "a3")
    ask(bench, "bob", "b0")

    assert [serve_next(bench) for _ in range(4)] == ["b0", "a1", "a2", "a3"]


def test_a_higher_class_goes_before_less_use(bench: Bench) -> None:
    ask(bench, "alice", "a0")
    ask(bench, "bob", "b0", lease_class=BATCH)
    ask(bench, "carol", "c0")
    ask(bench, "alice", "a1", lease_class=INTERACTIVE)

    assert [serve_next(bench) for _ in range(3)] == ["a1", "c0", "b0"]


def test_the_account_with_the_least_use_over_its_weight_is_next(bench: Bench) -> None:
    bench.apply(ev.PolicyChanged(SharePolicy(weights={"bob@host": 4.0})))
    ask(bench, "alice", "a0", "a1")
    ask(bench, "bob", "b0", "b1", "b2", "b3")
    ask(bench, "carol", "c0")

    order = [serve_next(bench, after_sec=100.0) for _ in range(6)]

    assert order == ["b0", "c0", "b1", "b2", "b3", "a1"]


def test_a_lease_is_charged_at_its_grant_and_settled_at_its_end(bench: Bench) -> None:
    ask(bench, "alice", "a0", "a1")
    charged_sec = used_sec(bench, "alice")

    serve_next(bench, after_sec=30.0)

    assert charged_sec == pytest.approx(600.0)
    assert bench.state.accounts.account("alice@host").day_sec[NORMAL] == pytest.approx(30.0 + 30.0)


def test_a_long_lease_is_charged_while_it_lasts(bench: Bench) -> None:
    ask(bench, "alice", "a0")
    for _ in range(20):
        bench.now += 200.0
        bench.apply(ev.Renew("alice", held(bench).name))

    assert 4_000.0 * 0.85 < used_sec(bench, "alice") < 4_300.0


def test_many_short_leases_cost_as_much_as_their_sum(bench: Bench) -> None:
    """An account that releases at once, again and again, moves behind one with a single lease of the same length."""
    ask(bench, "alice", *(f"a{i}" for i in range(101)))
    for _ in range(100):
        serve_next(bench, after_sec=1.0)

    bench.apply(ev.Release("alice", held(bench).name))

    assert used_sec(bench, "alice") == pytest.approx(100.0, rel=0.02)


@given(charges=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.1, 1e5), st.floats(0.0, 5e5)), max_size=20))
def test_use_decays_by_half_in_each_half_life(charges: list[tuple[str, float, float]]) -> None:
    """The sum by forward decay equals the sum of decayed charges, years after 1970 too."""
    accounts, start_sec = Accounts(SharePolicy(weights={"a": 3.0})), 1.8e9
    now = start_sec + 6e5
    for name, sec, at_sec in charges:
        accounts.charge(accounts.account(name), NORMAL, sec, start_sec + at_sec)

    half_life_sec = accounts.policy.half_life_sec
    for name in "ab":
        own = [sec * 2 ** ((start_sec + at_sec - now) / half_life_sec) for each, sec, at_sec in charges if each == name]
        assert accounts.used_sec(accounts.account(name), now) == pytest.approx(math.fsum(own), rel=1e-6, abs=1e-9)


@given(sec=st.floats(1.0, 1e5), back=st.floats(0.0, 1.0), base_sec=st.floats(1.0, 1e5))
def test_a_refund_undoes_its_part_of_a_charge(sec: float, back: float, base_sec: float) -> None:
    accounts = Accounts(SharePolicy())
    account = accounts.account("a")
    accounts.charge(account, NORMAL, base_sec, T0)
    accounts.charge(account, NORMAL, sec, T0)
    accounts.charge(account, NORMAL, -back * sec, T0)

    assert accounts.used_sec(account, T0) == pytest.approx(base_sec + (1 - back) * sec, rel=1e-6)


def test_use_survives_a_new_half_life_and_a_new_weight(bench: Bench) -> None:
    ask(bench, "alice", "a0")
    before_sec = used_sec(bench, "alice")

    bench.apply(ev.PolicyChanged(SharePolicy(half_life_sec=HOUR_SEC, weights={"alice@host": 5.0})))

    assert used_sec(bench, "alice") == pytest.approx(before_sec)


@pytest.mark.parametrize("away_sec", [0.0, 5.0, -DAY_SEC])
def test_turns_are_the_same_after_a_restart(away_sec: float) -> None:
    """Use and arrivals come from the journal, also if the clock was set back by a day meanwhile."""
    orders = []
    for restarts in (False, True):
        bench = Bench()
        bench.state = TrackerState(boot=7)
        bench.attach("a")
        bench.connect("alice", "bob", "carol")
        ask(bench, "alice", "a0", "a1", "a2")
        assert serve_next(bench) == "a1"
        ask(bench, "bob", "b0", "b1")
        ask(bench, "carol", "c0")
        if restarts:
            bench.restart(away_sec)
            bench.connect("alice", "bob", "carol")
            for client, request_id in (("carol", "c0"), ("bob", "b1"), ("alice", "a2"), ("bob", "b0")):
                ask(bench, client, request_id)
            bench.attach("a")
        orders.append([serve_next(bench, after_sec=1.0) for _ in range(4)])

    assert orders[0] == orders[1]


def test_use_of_long_ago_leaves_the_journal() -> None:
    """After thirty half-lives an account counts as new."""
    use = UseEntry(account="ann", used_sec=3_600.0, at_sec=T0, day=0, day_sec={})
    durable = Durable(
        boot=7, devices=[], requests=[], uses=[use, replace(use, account="bob", at_sec=T0 + 190 * HOUR_SEC)]
    )

    state = TrackerState.restore(durable, T0 + 200 * HOUR_SEC)

    assert state.accounts.by_name.keys() == {"bob"}
    assert state.take_changes().uses == {"ann": None}


def test_a_used_up_quota_makes_a_request_wait_beside_a_free_board(bench: Bench) -> None:
    bench.attach("a", "b", "c")
    ask(bench, "alice", "a0", "a1", "a2", lease_class=INTERACTIVE)
    (request,) = bench.state.clients["alice"].requests.values()
    standing = Queries(bench.state).standing(request)
    assert request.request_id == "a2"
    assert standing.reason is WaitReason.QUOTA
    assert standing.quota is not None
    assert (standing.quota.limit, standing.quota.leases, standing.quota.most_leases) == (QuotaLimit.LEASES, 2, 2)

    assert granted(bench.apply(ev.Release("alice", held(bench).name))) == ["a2"]


def test_room_in_a_quota_serves_a_request_for_another_free_board(bench: Bench) -> None:
    bench.attach("a", "b", "c", "d")
    for request_id, selector in (("a0", "name=a"), ("a1", "name=b"), ("a2", "name=[cd]")):
        bench.apply(ev.Acquire("alice", request_id, LeaseTerms(selector=selector, lease_class=INTERACTIVE)))

    assert granted(bench.apply(ev.Release("alice", bench.state.clients["alice"].leases["a1"].name))) == ["a2"]


def test_device_seconds_of_a_day_are_renewed_at_midnight(bench: Bench) -> None:
    bench.now = math.ceil(T0 / DAY_SEC) * DAY_SEC - 2 * HOUR_SEC
    bench.apply(ev.PolicyChanged(SharePolicy(class_quotas={"": {NORMAL: Quota(device_sec_per_day=HOUR_SEC)}})))
    ask(bench, "alice", "a0", "a1")
    bench.now += HOUR_SEC
    held(bench).expires_at_sec = bench.now + 1.0
    assert granted(bench.apply(ev.Release("alice", held(bench).name))) == []

    assert granted(bench.tick(HOUR_SEC - 1.0)) == []
    assert granted(bench.tick(2.0)) == ["a1"]


def test_a_daily_quota_counts_the_leases_of_the_day_before_it_was_set(bench: Bench) -> None:
    """The use of the day is known although no quota counted it when the tracker started."""
    bench.restart()
    bench.connect("alice")
    bench.attach("a")
    ask(bench, "alice", "a0", "a1")
    assert serve_next(bench, after_sec=HOUR_SEC) == "a1"

    bench.apply(ev.PolicyChanged(SharePolicy(class_quotas={"": {NORMAL: Quota(device_sec_per_day=HOUR_SEC)}})))
    ask(bench, "alice", "a2")

    bench.now += 60.0
    assert granted(bench.apply(ev.Release("alice", held(bench).name))) == []


def test_new_rules_beside_many_waiting_accounts_serve_in_portions(bench: Bench) -> None:
    """A search for each free board at once would stall the tracker; the rest follows with later events."""
    boards = [f"d{number}" for number in range(60)]
    bench.attach(*boards)
    names = [f"user{number}" for number in range(30)]
    bench.connect(*names)
    one = SharePolicy(class_quotas={"": {NORMAL: Quota(leases=1)}})
    bench.apply(ev.PolicyChanged(one))
    for name in names:
        ask(bench, name, f"{name}-0", f"{name}-1")

    bench.apply(ev.PolicyChanged(replace(one, half_life_sec=HOUR_SEC)))
    is_in_portions = bench.state.timers.is_set(("serve",))
    served = granted(bench.apply(ev.PolicyChanged(SharePolicy())))
    while bench.state.timers.is_set(("serve",)):
        served += granted(bench.tick(0.0))

    assert is_in_portions
    assert sorted(served) == sorted(f"{name}-1" for name in names)


def test_a_lease_is_cut_to_the_longest_of_its_class(bench: Bench) -> None:
    ask(bench, "alice", "a0", lease_class=INTERACTIVE, max_sec=50 * HOUR_SEC)

    assert held(bench).ends_at_sec == bench.now + 2 * HOUR_SEC


def test_an_account_that_gets_nothing_for_twelve_hours_is_served_once(bench: Bench) -> None:
    """Its oldest request goes first whatever the classes; the next of its requests waits for twelve hours more."""
    ask(bench, "alice", "a0")
    ask(bench, "bob", "old", "older", lease_class=BATCH)
    served: list[tuple[str, float]] = []
    for i in range(100):
        ask(bench, "alice", f"n{i}")
        served.append((serve_next(bench, after_sec=HOUR_SEC / 2), (bench.now - T0) / HOUR_SEC))

    assert [each for each in served if not each[0].startswith("n")] == [("old", 12.5), ("older", 25.0)]


@pytest.mark.parametrize("also", [(), ("name=b",)])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_batch_lease_after_starvation_keeps_its_slice(
    bench: Bench, also: tuple[str, ...], is_restarted: bool
) -> None:
    """Other batch leases give way to a request of a higher class at once, and end after a grace of 15 s."""
    bench.attach("a", "b")
    ask(bench, "alice", "a0", "a1")
    bench.apply(ev.Acquire("bob", "starved", LeaseTerms(selector="name=a", also=also, lease_class=BATCH, ttl_sec=300)))
    bench.now += 13 * HOUR_SEC
    for lease in list(bench.state.leases.values()):
        lease.expires_at_sec = bench.now + 1.0
        bench.apply(ev.Release("alice", lease.name))
    bench.tick(1.0)
    since_sec = held(bench).granted_at_sec
    if is_restarted:
        bench.restart(5.0)
        bench.connect("alice", "bob", "carol")
        bench.attach("a", "b")
    bench.apply(ev.Acquire("carol", "c0", LeaseTerms(selector="name=a", lease_class=INTERACTIVE)))

    asked_after_sec: list[float] = []
    while not asked_after_sec:
        bench.now += 10.0
        effects = bench.apply(ev.Renew("bob", held(bench).name))
        asked_after_sec += [bench.now - since_sec for effect in effects if isinstance(effect, ev.YieldWanted)]

    slice_sec = SharePolicy().slice_sec
    assert slice_sec <= asked_after_sec[0] <= slice_sec + 70.0


@given(arrivals=st.permutations(range(9)), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_permuted_arrivals_give_the_same_grants(arrivals: list[int], seed: int) -> None:
    """Requests made at the same moment are granted in one order, however they arrive."""
    lengths = [random.Random(seed + i).uniform(1.0, 900.0) for i in range(9)]
    orders = []
    for order in (range(9), arrivals):
        bench = Bench()
        bench.state = TrackerState(boot=7)
        bench.connect("alice", "bob", "carol")
        bench.attach("a")
        ask(bench, "alice", "first")
        for i in order:
            ask(bench, ("alice", "bob", "carol")[i % 3], f"r{i}", priority=-i, lease_class=(NORMAL, BATCH)[i % 2])
        orders.append([serve_next(bench, after_sec=length) for length in lengths])

    assert orders[0] == orders[1]


@given(asked=st.lists(st.tuples(st.sampled_from(["alice", "bob"]), st.integers(-9, 9), st.integers(0, 3)), max_size=12))
@settings(max_examples=30, deadline=None)
def test_priority_and_bid_change_the_order_within_one_account_only(asked: list[tuple[str, int, int]]) -> None:
    turns = []
    for is_plain in (True, False):
        bench = Bench()
        bench.state = TrackerState(boot=7)
        bench.connect("alice", "bob", "carol")
        bench.attach("a")
        ask(bench, "carol", "first")
        for i, (client, priority, bid) in enumerate(asked):
            if is_plain:
                ask(bench, client, f"{client}-{i}")
            else:
                ask(bench, client, f"{client}-{i}", priority=priority, bid=float(bid))
        turns.append([serve_next(bench).partition("-")[0] for _ in asked])

    assert turns[0] == turns[1]


def test_within_an_account_priority_then_bid_then_age_decide(bench: Bench) -> None:
    ask(bench, "carol", "first")
    ask(bench, "alice", "old")
    ask(bench, "alice", "new")
    ask(bench, "alice", "bidding", bid=2.0)
    ask(bench, "alice", "urgent", priority=1)

    assert [serve_next(bench) for _ in range(4)] == ["urgent", "bidding", "old", "new"]


@pytest.mark.parametrize("bid", [-1.0, math.nan, math.inf])
def test_negative_and_nonfinite_bids_are_refused(bench: Bench, bid: float) -> None:
    (effect,) = bench.acquire("alice", "1", bid=bid)

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is InvalidRequest


def test_a_lease_of_an_older_tracker_is_settled_with_its_holder(bench: Bench) -> None:
    """Leases of the version before name no account and were charged nothing."""
    ask(bench, "alice", "a0")
    durable = bench.state.durable()
    durable.devices[0].lease = replace(held(bench), account="", charged_sec=0.0)
    bench.state = TrackerState.restore(replace(durable, boot=8, uses=[]), bench.now)
    bench.connect("alice")
    bench.now += 20.0

    bench.apply(ev.Release("alice", held(bench).name))

    assert used_sec(bench, "alice") == pytest.approx(20.0, rel=1e-2)
