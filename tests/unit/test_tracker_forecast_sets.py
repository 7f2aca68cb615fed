"""Forecasts of sets: a set starts when it has all of its devices."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.health import HealthMark, HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.testing import FakeClock
from fleet.tracker.core import events as ev
from fleet.tracker.core.outlook import Board, Held, Lane, Outlook, make_outlook
from fleet.tracker.core.queries import Queries
from fleet.tracker.forecast import SCHEDULINGS, Schedulings
from fleet.tracker.forecaster import Forecaster
from fleet.tracker.lengths import Lengths
from fleet.tracker.pace import Pace
from fleet.tracker.portions import finished
from tests.unit.test_tracker_forecast import row
from tests.unit.tracker_bench import Bench

NORMAL = LeaseClass.NORMAL
_SIZE = 3


def lane_of(name: str, *members: frozenset[int]) -> Lane:
    """Return the lane of a set, or of one request if there is one member."""
    places = [(0, 0.0, 0.0, 0, ("client", name))]
    pools = frozenset[int]().union(*members)
    return Lane(name, NORMAL, pools, [("client", name)], places, members=members if len(members) > 1 else ())


def starts(outlook: Outlook, secs: Sequence[float], seed: int = 0) -> dict[str, list[float]]:
    lengths = Lengths()
    for sec in secs:
        lengths.add("ann", NORMAL, "pi", sec)
    schedulings = Schedulings(outlook, lengths, seed)
    for _ in range(SCHEDULINGS):
        for _ in schedulings.run():
            pass
    return {name: found for (_, name), found in schedulings.starts_sec.items()}


def held(pool: int, age_sec: float) -> Board:
    return Board(pool, "pi", Held("ann", NORMAL, age_sec))


def test_a_set_starts_when_its_last_device_is_free() -> None:
    """The request behind it waits for a device that the set holds from 10 s on, and uses from 60 s on."""
    outlook = Outlook(
        boards=[held(0, 90.0), held(1, 40.0)],
        lanes=[lane_of("a", frozenset({0}), frozenset({1})), lane_of("b", frozenset({0}))],
        uses={},
    )
    found = starts(outlook, [100.0] * 5)
    assert set(found["a"]) == {60.0}
    assert set(found["b"]) == {160.0}


def test_members_with_one_selector_have_two_devices() -> None:
    outlook = Outlook(
        boards=[held(0, 90.0), held(0, 40.0)], lanes=[lane_of("a", frozenset({0}), frozenset({0}))], uses={}
    )
    assert set(starts(outlook, [100.0] * 5)["a"]) == {60.0}


_pools = st.frozensets(st.integers(0, 2), min_size=1)


@given(
    st.lists(st.lists(_pools, min_size=1, max_size=_SIZE), min_size=1, max_size=6),
    st.lists(st.floats(0.0, 90.0), min_size=3 * _SIZE, max_size=3 * _SIZE),
    st.integers(0, 99),
)
def test_sets_never_wait_for_each_other(members: list[list[frozenset[int]]], ages: list[float], seed: int) -> None:
    """Each scheduling serves every set and every request, in whichever order devices come free."""
    boards = [held(number % 3, age_sec) for number, age_sec in enumerate(ages)]
    lanes = [lane_of(f"account-{number}", *each) for number, each in enumerate(members)]
    found = starts(Outlook(boards=boards, lanes=lanes, uses={}), [50.0, 80.0, 100.0, 120.0, 500.0], seed)
    assert all(len(found[lane.account]) == SCHEDULINGS for lane in lanes)


def set_bench() -> Bench:
    """Two boards that alice holds, and a set of bob for both."""
    bench = Bench()
    bench.attach("a", "b")
    bench.connect("alice", "bob")
    bench.grant("alice", "r1", "name=a")
    bench.grant("alice", "r2", "name=b")
    bench.apply(ev.Acquire("bob", "both", LeaseTerms(selector="name=a", also=("name=b",))))
    return bench


def test_an_outlook_has_the_pools_of_each_member() -> None:
    outlook = finished(make_outlook(set_bench().state, lambda device: device.kind))
    (lane,) = outlook.lanes
    assert (lane.account, lane.keys, len(outlook.boards)) == ("bob@host", [("bob", "both")], 2)
    assert sorted(map(sorted, lane.members)) == [[0], [1]]


def test_a_set_that_cannot_be_had_now_is_left_out() -> None:
    """It would hold its other device in the schedulings for ever."""
    bench = set_bench()
    mark = HealthMark(state=HealthState.MAINTENANCE, by="admin", at_sec=bench.now, reason="test")
    bench.apply(ev.MarkHealth(("devices/b",), mark))
    assert not finished(make_outlook(bench.state, lambda device: device.kind)).lanes


async def test_a_tracker_forecasts_sets() -> None:
    """The wait of a granted set is compared with its first forecast once, not for each device."""
    bench, clock = set_bench(), FakeClock()
    forecaster = Forecaster(Queries(bench.state), clock, Pace())
    forecaster.learn([row(20.0) for _ in range(5)])
    await forecaster.refresh()
    request = bench.state.clients["bob"].requests["both"]
    forecast = forecaster.of(request)
    assert forecast is not None
    assert forecast.expected_sec == clock.now_sec() + 20.0

    for lease in list(bench.state.leases.values()):
        for effect in bench.apply(ev.Release("alice", lease.name)):
            forecaster.on_effect(effect)
    assert forecaster.of(request) is None
    said = [forecaster.said_sec(lease.name) for lease in bench.state.leases.values()]
    assert [sec for sec in said if sec is not None] == [20.0]
