"""Forecasts of waits: schedulings of the queue with lengths of ended leases, and the task that makes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.domain.waits import Forecast, Wait, WaitReason, forecast_text
from fleet.testing import FakeClock
from fleet.tracker.core import events as ev
from fleet.tracker.core.outlook import Board, Held, Key, Lane, Outlook, make_outlook
from fleet.tracker.core.queries import Queries
from fleet.tracker.forecast import SCHEDULINGS, Schedulings
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.history_file import LeaseRow
from fleet.tracker.lengths import Lengths
from fleet.tracker.pace import Pace
from fleet.tracker.portions import finished
from tests.unit.tracker_bench import Bench

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE


def lane(account: str, *names: str, lease_class: LeaseClass = NORMAL, pools: frozenset[int] = frozenset({0})) -> Lane:
    keys = [("client", name) for name in names]
    return Lane(account, lease_class, pools, keys, [(0, 0.0, float(at)) for at in range(len(names))])


def lengths(*secs: float, lease_class: LeaseClass = NORMAL) -> Lengths:
    found = Lengths()
    for sec in secs:
        found.add("ann", lease_class, "pi", sec)
    return found


def starts(outlook: Outlook, known: Lengths, seed: int = 0) -> dict[Key, list[float]]:
    schedulings = Schedulings(outlook, known, seed)
    for _ in range(SCHEDULINGS):
        finished(schedulings.run())  # type: ignore[arg-type]
    return schedulings.starts_sec


def held(account: str, lease_class: LeaseClass, age_sec: float) -> Board:
    return Board(0, "pi", Held(account, lease_class, age_sec))


def test_one_board_serves_one_after_the_other() -> None:
    """With leases of 100 s, 40 s old, the first starts in 60 s and the second in 160 s."""
    outlook = Outlook(boards=[held("bob", NORMAL, 40.0)], lanes=[lane("ann", "r1", "r2")], uses={})
    found = starts(outlook, lengths(*[100.0] * 5))
    assert set(found["client", "r1"]) == {60.0}
    assert set(found["client", "r2"]) == {160.0}


def test_only_lengths_beyond_the_age_are_drawn() -> None:
    """Lengths below the present age of a lease, 50 s, are not drawn."""
    outlook = Outlook(boards=[held("ann", NORMAL, 50.0)], lanes=[lane("ann", "r")], uses={})
    assert set(starts(outlook, lengths(10.0, 10.0, 10.0, 60.0, 80.0))["client", "r"]) == {10.0, 30.0}


def test_the_expected_end_of_a_lease_is_the_median_of_longer_ones() -> None:
    """Lengths below the present age do not count; without longer ones, no end is expected."""
    known = lengths(10.0, 10.0, 60.0, 80.0, 100.0)
    assert known.rest_sec("ann", NORMAL, "pi", 50.0) == 30.0
    assert known.rest_sec("ann", NORMAL, "pi", 101.0) is None
    assert known.rest_sec("bob", INTERACTIVE, "pi", 0.0) is None


def test_lengths_of_very_many_accounts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest accounts go; the groups of everybody stay."""
    monkeypatch.setattr("fleet.tracker.lengths._MAX_GROUPS", 8)
    known = Lengths()
    for number in range(50):
        known.add(f"account-{number}", NORMAL, "pi", float(number))
    assert known.like("account-0", NORMAL, "pi") == [float(number) for number in range(50)]
    assert len(known) <= 8


def test_the_account_with_less_use_goes_first_within_a_class() -> None:
    lanes = [lane("ann", "a"), lane("bob", "b"), lane("eve", "i", lease_class=INTERACTIVE)]
    outlook = Outlook(boards=[Board(0, "pi")], lanes=lanes, uses={"ann": 9.0, "bob": 1.0, "eve": 50.0})
    found = starts(outlook, lengths(*[100.0] * 5))
    assert [found["client", name][0] for name in ("i", "b", "a")] == [0.0, 0.0, 100.0]


def test_batch_leases_give_way_to_a_person() -> None:
    outlook = Outlook(boards=[held("bob", BATCH, 5.0)], lanes=[lane("ann", "r", lease_class=INTERACTIVE)], uses={})
    assert max(starts(outlook, lengths(*[1e4] * 5, lease_class=BATCH))["client", "r"]) <= outlook.yield_sec


@given(st.integers(0, 2**32), st.lists(st.floats(1, 1e4), min_size=5, max_size=20))
def test_a_seed_gives_the_same_forecast(seed: int, secs: list[float]) -> None:
    outlook = Outlook(boards=[held("ann", NORMAL, 5.0)] * 3, lanes=[lane("ann", "r1", "r2", "r3", "r4")], uses={})
    assert starts(outlook, lengths(*secs), seed) == starts(outlook, lengths(*secs), seed)


def test_similar_leases_are_used_where_equal_ones_are_few() -> None:
    """First the account's in the class, then everybody's on the model, then everybody's in the class."""
    known = lengths(*[10.0] * 5)
    assert set(known.like("ann", NORMAL, "orin")) == {10.0}
    assert set(known.like("bob", NORMAL, "pi")) == {10.0}
    assert set(known.like("bob", NORMAL, "orin")) == {10.0}
    assert not known.like("ann", BATCH, "pi")


def test_a_forecast_is_told_in_one_sentence() -> None:
    assert forecast_text(None, 5.0) == "not known: too few leases have ended"
    assert forecast_text(None, 5.0, Wait(reason=WaitReason.QUOTA)) == "not known: a quota is used up"
    assert forecast_text(None, 5.0, Wait(reason=WaitReason.MARKED)) == "not known: no device can serve it now"
    text = forecast_text(Forecast(from_sec=65.0, expected_sec=125.0, by_sec=605.0), 5.0)
    assert text == "in 2 min, likely 1 min to 10 min"


def waiting_bench() -> Bench:
    """One board that alice holds, and a request of bob."""
    bench = Bench()
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    bench.grant("alice", "r1", "name=a")
    bench.acquire("bob", "r2", "name=a")
    return bench


def test_an_outlook_has_the_boards_that_somebody_waits_for() -> None:
    """Free boards of other selectors do not count."""
    outlook = finished(make_outlook(waiting_bench().state, lambda device: device.kind))
    (board,) = outlook.boards
    assert (board.held, board.model) == (Held("alice@host", NORMAL, 0.0), "cpu")
    assert [(each.account, each.keys, each.pools) for each in outlook.lanes] == [
        ("bob@host", [("bob", "r2")], frozenset({board.pool}))
    ]


def test_an_outlook_has_the_age_of_a_lane_and_the_rank_of_its_account() -> None:
    """Of two accounts, the waiting one has used less, so no account is served before it."""
    bench = waiting_bench()
    bench.tick(20.0)
    bench.acquire("alice", "r3", "name=a")
    outlook = finished(make_outlook(bench.state, lambda device: device.kind))
    assert {each.account: each.age_sec for each in outlook.lanes} == {"bob@host": 20.0, "alice@host": 0.0}
    assert outlook.use_ranks == {"bob@host": 0.0, "alice@host": 0.5}


def row(length_sec: float) -> LeaseRow:
    return LeaseRow(
        ended_sec=1.0,
        account="alice@host",
        holder="alice",
        device="devices/a",
        model="",
        lease_class="normal",
        end="released",
        leases=1,
        length_sec=length_sec,
        wait_sec=0.0,
        forecast_sec=None,
    )


async def test_a_tracker_forecasts_from_its_history_and_ends_no_lease() -> None:
    """Without history it makes no forecast; the wait of a granted request is compared with the first forecast."""
    bench, clock = waiting_bench(), FakeClock()
    queries = Queries(bench.state)
    forecaster = Forecaster(queries, clock, Pace())
    (request,) = queries.requests_of("bob", 8)
    await forecaster.refresh()
    assert forecaster.of(request) is None

    forecaster.learn([row(20.0) for _ in range(5)])
    await forecaster.refresh()
    forecast = forecaster.of(request)
    assert forecast is not None
    assert forecast.expected_sec == clock.now_sec() + 20.0
    assert len(bench.state.leases) == 1

    (lease,) = bench.state.leases.values()
    for effect in bench.apply(ev.Release("alice", lease.name)):
        forecaster.on_effect(effect)
    (granted,) = bench.state.leases.values()
    assert forecaster.said_sec(granted.name) == pytest.approx(20.0)
    assert forecaster.of(request) is None


def test_quotas_hold_requests_out_of_the_outlook() -> None:
    """Nobody knows when a quota has room again."""
    bench = Bench()
    bench.attach("a", "b", "c")
    bench.connect("alice")
    for name in ("r1", "r2", "r3"):
        bench.apply(ev.Acquire("alice", name, LeaseTerms(selector="cpu", lease_class=INTERACTIVE)))
    assert not finished(make_outlook(bench.state, lambda device: device.kind)).lanes
