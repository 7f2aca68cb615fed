"""Forecasts follow bookings and health marks: no start on a booked or closed device."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.testing import FakeClock
from fleet.tracker.core import events as ev
from fleet.tracker.core.outlook import Board, Held, Lane, Outlook, Span, make_outlook
from fleet.tracker.core.queries import Queries
from fleet.tracker.forecast import SCHEDULINGS, Schedulings
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.lengths import Lengths
from fleet.tracker.pace import Pace
from fleet.tracker.portions import finished
from tests.unit.test_tracker_forecast import row
from tests.unit.tracker_bench import Bench

BATCH, NORMAL, INTERACTIVE = LeaseClass.BATCH, LeaseClass.NORMAL, LeaseClass.INTERACTIVE
HOUR_SEC = 3600.0

_gaps = st.lists(st.tuples(st.floats(1.0, 500.0), st.floats(1.0, 500.0)), max_size=3)
_leases = st.one_of(st.none(), st.builds(Held, st.just("ann"), st.sampled_from(LeaseClass), st.floats(0.0, 300.0)))
_requests = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(LeaseClass), st.floats(1.0, 400.0)), min_size=1, max_size=8
)


@given(st.lists(st.tuples(_gaps, _leases), min_size=3, max_size=3), _requests, st.integers(0, 99))
def test_no_request_starts_in_a_booked_time(
    boards: list[tuple[list[Span], Held | None]], requests: list[tuple[int, LeaseClass, float]], seed: int
) -> None:
    """Leases that hold a device end by the next booking as well: the longest that a client may keep it."""
    outlook = Outlook(
        boards=[Board(pool, "pi", held, spans(gaps)) for pool, (gaps, held) in enumerate(boards)],
        lanes=[
            lane_of(f"account-{number}", lease_class, longest_sec, pool=pool)
            for number, (pool, lease_class, longest_sec) in enumerate(requests)
        ],
        uses={},
    )
    for lane in outlook.lanes:
        for start_sec in starts(outlook, seed)[lane.keys[0]]:
            (pool,) = lane.pools
            for booked_sec, end_sec in outlook.boards[pool].booked:
                longest_sec = outlook.yield_sec if lane.lease_class is BATCH else lane.longest_sec[0]
                assert start_sec >= end_sec or start_sec + longest_sec <= booked_sec


def spans(gaps: list[Span]) -> list[Span]:
    """Return bookings from the free time before each, and its length."""
    found, end_sec = [], 0.0
    for free_sec, booked_sec in gaps:
        found.append((end_sec + free_sec, end_sec + free_sec + booked_sec))
        end_sec += free_sec + booked_sec
    return found


def starts(outlook: Outlook, seed: int = 0) -> dict[tuple[str, str], list[float]]:
    lengths = Lengths()
    for lease_class in LeaseClass:
        for sec in (50.0, 100.0, 150.0, 200.0, 250.0):
            lengths.add("ann", lease_class, "pi", sec)
    schedulings = Schedulings(outlook, lengths, seed)
    for _ in range(SCHEDULINGS):
        for _ in schedulings.run():
            pass
    return schedulings.starts_sec


def one_board(booked: list[Span], *lanes: Lane) -> Outlook:
    return Outlook(boards=[Board(0, "pi", None, booked)], lanes=lanes, uses={})


def lane_of(name: str, lease_class: LeaseClass, longest_sec: float, booked: Sequence[Span] = (), pool: int = 0) -> Lane:
    """Return a lane with one request."""
    return Lane(
        name,
        lease_class,
        frozenset({pool}),
        [("client", name)],
        [(0, 0.0, 0.0, 0, ("client", name))],
        longest_sec=[longest_sec],
        booked=[booked] if booked else (),
    )


def test_a_short_lease_goes_before_a_long_one_on_a_board_that_is_booked_soon() -> None:
    """The long one starts at the end of the booking, although its account is first."""
    booked = [(300.0, 900.0)]
    outlook = one_board(booked, lane_of("a", NORMAL, 400.0, booked), lane_of("b", NORMAL, 250.0, booked))
    found = starts(outlook)
    assert set(found["client", "b"]) == {0.0}
    assert set(found["client", "a"]) == {900.0}


def test_a_batch_lease_ends_at_the_booking() -> None:
    booked = [(20.0, 900.0)]
    outlook = one_board(booked, lane_of("a", BATCH, 400.0, booked), lane_of("b", BATCH, 400.0, booked))
    found = starts(outlook)
    assert set(found["client", "a"]) == {0.0}
    assert set(found["client", "b"]) == {900.0}


def test_calibrated_times_are_moved_out_of_booked_times() -> None:
    """A normal request may not start when its lease could last into the booking, a batch request up to its start."""
    booked = [(100.0, 200.0), (250.0, 300.0)]
    normal, batch = lane_of("a", NORMAL, 60.0, booked), lane_of("b", BATCH, 60.0, booked)
    assert [normal.open_from(0, sec, 5.0) for sec in (0.0, 40.0, 41.0, 150.0, 301.0)] == [
        0.0,
        40.0,
        300.0,
        300.0,
        301.0,
    ]
    assert [batch.open_from(0, sec, 5.0) for sec in (94.0, 96.0, 200.0, 260.0)] == [94.0, 200.0, 200.0, 300.0]
    assert lane_of("a", NORMAL, 60.0, []).open_from(0, 150.0, 5.0) == 150.0


def booked_bench() -> Bench:
    """One board that alice holds, booked from in an hour for an hour, and two requests of bob."""
    bench = Bench()
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    bench.grant("alice", "r1", "name=a", max_sec=600.0)
    bench.apply(
        ev.Book(
            selector="name=a",
            device_count=1,
            starts_at_sec=bench.now + HOUR_SEC,
            ends_at_sec=bench.now + 2 * HOUR_SEC,
            holder="alice@host",
            account="alice@host",
        )
    )
    bench.acquire("bob", "short", "name=a", max_sec=1_800.0)
    bench.acquire("bob", "long", "name=a", max_sec=7_200.0)
    return bench


def test_an_outlook_has_the_bookings_of_its_boards() -> None:
    outlook = finished(make_outlook(booked_bench().state, lambda device: device.kind))
    assert [board.booked for board in outlook.boards] == [[(HOUR_SEC, 2 * HOUR_SEC)]]
    (lane,) = outlook.lanes
    assert lane.longest_sec == [1_800.0, 7_200.0]
    assert lane.booked == [[(HOUR_SEC, 2 * HOUR_SEC)]]


def test_one_board_that_is_not_booked_leaves_forecasts_as_they_are() -> None:
    """Times are moved only if all boards of a request are booked."""
    bench = booked_bench()
    bench.grant("alice", "r2", "name=b", max_sec=600.0)
    bench.acquire("bob", "any", "cpu")
    outlook = finished(make_outlook(bench.state, lambda device: device.kind))
    assert {lane.keys[0][1]: bool(lane.booked) for lane in outlook.lanes} == {"short": True, "any": False}


def test_times_are_not_moved_past_the_bookings_of_very_many_boards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing thousands of bookings for each request would take too long."""
    monkeypatch.setattr("fleet.tracker.core.outlook._MAX_BOOKED", 0)
    (lane,) = finished(make_outlook(booked_bench().state, lambda device: device.kind)).lanes
    assert (lane.booked, lane.longest_sec) == ((), [1_800.0, 7_200.0])


async def test_a_tracker_says_that_a_long_lease_starts_after_the_booking() -> None:
    bench, clock = booked_bench(), FakeClock()
    forecaster = Forecaster(Queries(bench.state), clock, Pace())
    forecaster.learn([row(20.0) for _ in range(5)])
    await forecaster.refresh()
    found = {request.request_id: forecaster.of(request) for request in bench.state.clients["bob"].requests.values()}
    short, long = found["short"], found["long"]
    assert short is not None
    assert short.by_sec - clock.now_sec() == 20.0
    assert long is not None
    assert long.from_sec - clock.now_sec() == 2 * HOUR_SEC


def mark(bench: Bench, state: HealthState) -> None:
    marked = HealthMark(state=state, by="admin", at_sec=bench.now, reason="test")
    bench.apply(ev.MarkHealth(("devices/a",), marked))


def test_a_draining_board_serves_nobody() -> None:
    bench = booked_bench()
    mark(bench, HealthState.DRAINING)
    assert not finished(make_outlook(bench.state, lambda device: device.kind)).boards


def test_a_suspect_board_serves_batch_requests_that_name_it() -> None:
    """Others of the class batch have no board."""
    bench = booked_bench()
    bench.grant("alice", "r2", "name=b")
    mark(bench, HealthState.SUSPECT)
    for request_id, selector in (("named", "name=a"), ("any", "cpu")):
        bench.apply(ev.Acquire("alice", request_id, LeaseTerms(selector=selector, lease_class=BATCH)))
    outlook = finished(make_outlook(bench.state, lambda device: device.kind))
    found = {lane.keys[0][1]: len(lane.pools) for lane in outlook.lanes}
    assert found == {"short": 1, "named": 1, "any": 1}
    assert len({board.pool for board in outlook.boards}) == 2
