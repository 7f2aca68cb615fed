"""Requests for an account other than the client's own: allowed, charged, limited and restored in that account."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.accounts import MAX_ACCOUNT_CHARS, account_text, checked_account, checked_new_account
from fleet.domain.leases import LeaseTerms
from fleet.errors import InvalidRequest, NotAllowed, QueueFull
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import Bench, refused

KEY_ID = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def bench() -> Bench:
    """One board, a gateway that may ask for others, and alice of team-a."""
    bench = Bench()
    bench.attach("a")
    connect(bench, "gateway", "", may_ask_for_others=True)
    connect(bench, "alice", "team-a")
    return bench


def connect(bench: Bench, client: str, account: str, *, may_ask_for_others: bool = False) -> list[ev.Effect]:
    event = ev.ClientConnected(client, f"{client}@host", account, may_ask_for_others=may_ask_for_others)
    return bench.apply(event)


def acquire(bench: Bench, client: str, request_id: str, account: str) -> list[ev.Effect]:
    return bench.apply(ev.Acquire(client, request_id, LeaseTerms(selector="cpu", account=account)))


def used_sec(bench: Bench, account: str) -> float:
    accounts = bench.state.accounts
    return accounts.used_sec(accounts.account(account), bench.now)


def test_a_client_is_welcomed_with_its_account(bench: Bench) -> None:
    (of_member,) = connect(bench, "alice", "team-a")
    (of_gateway,) = connect(bench, "gateway", "", may_ask_for_others=True)

    assert isinstance(of_member, ev.Welcomed)
    assert isinstance(of_gateway, ev.Welcomed)
    assert ("team-a", False) == (of_member.account, of_member.may_ask_for_others)
    assert ("gateway@host", True) == (of_gateway.account, of_gateway.may_ask_for_others)


def test_a_request_for_another_account_is_refused_without_the_right(bench: Bench) -> None:
    """A refused request creates no account. The client may name its own account."""
    (effect,) = acquire(bench, "alice", "1", "team-b")

    assert isinstance(effect, ev.Refused)
    assert NotAllowed is effect.error_class
    assert "fleet tracker token create --for-others" in effect.message
    assert "team-b" not in bench.state.accounts.by_name
    (own,) = acquire(bench, "alice", "2", "team-a")
    assert isinstance(own, ev.Granted)


@given(account=st.sampled_from(["team-a", "team-b", KEY_ID]), sec=st.floats(1.0, 29.0))
def test_a_request_for_another_account_is_charged_there(account: str, sec: float) -> None:
    """The account's use is the length of the lease; the client's own account has none."""
    bench = Bench()
    bench.attach("a")
    connect(bench, "gateway", "", may_ask_for_others=True)
    (effect,) = acquire(bench, "gateway", "1", account)
    assert isinstance(effect, ev.Granted)

    bench.now += sec
    bench.apply(ev.Release("gateway", effect.lease.name))

    assert pytest.approx(sec, rel=1e-3) == used_sec(bench, account)
    assert 0.0 == used_sec(bench, "gateway@host")


def test_a_request_for_another_account_takes_its_turn(bench: Bench) -> None:
    """A gateway's requests for two accounts are served in turns, not in the order of their times."""
    for request_id, account in (("a0", "team-a"), ("a1", "team-a"), ("a2", "team-a"), ("b0", "team-b")):
        acquire(bench, "gateway", request_id, account)

    served = []
    for _ in range(3):
        bench.now += 20.0
        lease = bench.state.devices["devices/a"].lease
        assert lease is not None
        bench.apply(ev.Release("gateway", lease.name))
        lease = bench.state.devices["devices/a"].lease
        assert lease is not None
        served.append(lease.request_id)

    assert ["b0", "a1", "a2"] == served


def test_requests_are_limited_in_the_account_that_they_count_for(bench: Bench) -> None:
    """One more request of an account with too many is refused from each client, and those of other accounts wait."""
    bench.state = TrackerState(boot=7, limits=TrackerLimits(max_waiting_per_account=2))
    bench.attach("a")
    connect(bench, "gateway", "", may_ask_for_others=True)
    connect(bench, "alice", "team-a")
    acquire(bench, "gateway", "0", "")
    acquire(bench, "gateway", "1", "team-a")
    acquire(bench, "alice", "2", "")

    assert [("3", QueueFull)] == refused(acquire(bench, "gateway", "3", "team-a"))
    assert [("4", QueueFull)] == refused(acquire(bench, "alice", "4", ""))
    assert [] == refused(acquire(bench, "gateway", "5", "team-b"))


def test_parked_requests_count_in_the_account_that_they_name(bench: Bench) -> None:
    """A new stream and a restart of the tracker keep the account of a waiting request."""
    acquire(bench, "alice", "0", "")
    acquire(bench, "gateway", "1", "team-b")
    acquire(bench, "gateway", "2", "")

    connect(bench, "gateway", "lab", may_ask_for_others=True)
    assert {"team-b": 1, "lab": 1} == bench.state.parked_by_account

    bench.restart()
    connect(bench, "gateway", "lab", may_ask_for_others=True)
    assert {"team-b": 1, "lab": 1} == bench.state.parked_by_account

    acquire(bench, "gateway", "1", "team-b")
    assert "team-b" == bench.state.clients["gateway"].requests["1"].account
    assert {"lab": 1} == bench.state.parked_by_account


def test_a_repeated_request_is_refused_after_the_right_was_taken_away(bench: Bench) -> None:
    acquire(bench, "alice", "0", "")
    acquire(bench, "gateway", "1", "team-b")

    connect(bench, "gateway", "")

    assert [("1", NotAllowed)] == refused(acquire(bench, "gateway", "1", "team-b"))


@pytest.mark.parametrize("name", ["a" * (MAX_ACCOUNT_CHARS + 1), " a", "a\x1b[2J", "a\nb"])
def test_a_malformed_account_is_refused(name: str, bench: Bench) -> None:
    with pytest.raises(InvalidRequest):
        checked_account(name)
    assert [("1", InvalidRequest)] == refused(acquire(bench, "gateway", "1", name))


@pytest.mark.parametrize("name", [KEY_ID, KEY_ID.upper()])
def test_a_new_account_is_not_named_like_a_key(name: str) -> None:
    """An admin's typing error would count one member's requests in the share of another."""
    with pytest.raises(InvalidRequest, match="choose another name"):
        checked_new_account(name)


def test_a_key_is_shown_by_its_beginning_and_a_name_whole() -> None:
    assert ("01234567", "team-a") == (account_text(KEY_ID), account_text("team-a"))


def test_the_journal_keeps_the_account_of_terms(bench: Bench) -> None:
    acquire(bench, "alice", "0", "")
    acquire(bench, "gateway", "1", "team-b")

    (request,) = bench.state.durable().requests

    assert replace(request.terms, selector="cpu").account == "team-b"
