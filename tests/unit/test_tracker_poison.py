"""Programs that killed a device: at most 1,000 for seven days, over restarts, each from the agent of its device."""

from __future__ import annotations

import pytest

from fleet.domain.poison import KEPT_SEC, MAX_POISON
from fleet.testing import Ledger
from fleet.tracker.core import events as ev
from fleet.tracker.core.state import TrackerState
from tests.unit.tracker_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """Two boards of one agent, and one of another."""
    bench = Bench()
    bench.attach("a", "b")
    bench.attach("c", agent="other")
    return bench


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def find(bench: Bench, number: int, device: str = "a", agent: str = "agent") -> None:
    bench.apply(ev.PoisonFound(agent, f"devices/{device}", digest(number)))


def pass_time(bench: Bench, sec: float) -> None:
    """Let time pass, and all timers fire: a few fire with each event."""
    bench.tick(sec)
    for _ in range(3):
        bench.tick(0.0)


def kept(bench: Bench) -> list[str]:
    return list(bench.state.poison)


def test_poison_is_forgotten_after_seven_days(bench: Bench) -> None:
    """A repeated report changes nothing."""
    find(bench, 1)
    bench.tick(KEPT_SEC / 2)
    find(bench, 2)
    find(bench, 1)
    bench.tick(KEPT_SEC / 2 - 1.0)
    assert kept(bench) == [digest(1), digest(2)]

    bench.tick(1.0)
    assert kept(bench) == [digest(2)]
    bench.tick(KEPT_SEC / 2)
    assert kept(bench) == []


def test_an_agent_reports_poison_of_its_own_devices_only(bench: Bench) -> None:
    find(bench, 1, "c", agent="agent")
    find(bench, 2, "unknown")
    find(bench, 3, "c", agent="other")

    assert kept(bench) == [digest(3)]


def test_a_device_with_very_much_poison_does_not_have_that_of_others_forgotten(bench: Bench) -> None:
    """The oldest of the device with the most goes."""
    find(bench, 0, "b")
    for number in range(1, MAX_POISON + 10):
        find(bench, number, "a")

    assert len(kept(bench)) == MAX_POISON
    assert kept(bench)[:2] == [digest(0), digest(11)]


@pytest.mark.parametrize("away_sec", [0.0, KEPT_SEC - 0.5])
def test_poison_survives_a_restart(bench: Bench, away_sec: float) -> None:
    """Its seven days go on while the tracker is away."""
    find(bench, 1)
    bench.tick(1.0)
    find(bench, 2)

    bench.restart(away_sec)

    assert kept(bench) == ([digest(2)] if away_sec else [digest(1), digest(2)])
    pass_time(bench, KEPT_SEC)
    assert kept(bench) == []


def test_poison_is_in_the_journal_until_it_is_forgotten() -> None:
    bench, ledger = Bench(), Ledger()
    bench.attach("a")
    find(bench, 1)
    ledger.write(bench.state.take_changes())
    assert [found.digest for found in ledger.open(0.0).poison] == [digest(1)]

    bench.tick(KEPT_SEC)
    ledger.write(bench.state.take_changes())

    assert ledger.open(0.0).poison == []


def test_poison_from_a_clock_ahead_is_kept_for_seven_days_from_now(bench: Bench) -> None:
    """The clock was set back while the tracker was away."""
    bench.now += 1e6
    find(bench, 1)
    durable = bench.state.durable()
    durable.boot += 1
    bench.now -= 1e6
    bench.state = TrackerState.restore(durable, bench.now)

    pass_time(bench, KEPT_SEC)

    assert kept(bench) == []


def test_forgotten_poison_is_gone_and_late_reports_of_it_are_ignored(bench: Bench) -> None:
    """An agent that has not been told repeats its report; half a minute later it means a new fault."""
    find(bench, 1)
    find(bench, 2)

    (forgotten,) = bench.apply(ev.ForgetPoison(digest(1)))
    assert isinstance(forgotten, ev.PoisonForgotten)
    assert (forgotten.found.digest, forgotten.found.device_name) == (digest(1), "devices/a")
    assert bench.apply(ev.ForgetPoison(digest(1))) == []
    bench.tick(29.0)
    find(bench, 1)
    assert kept(bench) == [digest(2)]

    bench.tick(2.0)
    find(bench, 1)
    assert kept(bench) == [digest(2), digest(1)]
    pass_time(bench, KEPT_SEC)
    assert kept(bench) == []


def test_forgotten_poison_is_gone_from_the_journal_which_has_the_reporters() -> None:
    bench, ledger = Bench(), Ledger()
    bench.attach("a")
    bench.apply(ev.PoisonFound("agent", "devices/a", digest(1), "lab1"))
    bench.apply(ev.PoisonFound("agent", "devices/a", digest(2), "lab1"))
    bench.apply(ev.ForgetPoison(digest(1)))
    ledger.write(bench.state.take_changes())

    assert [(found.digest, found.reported_by) for found in ledger.open(0.0).poison] == [(digest(2), "lab1")]


def test_the_last_poison_can_be_forgotten(bench: Bench) -> None:
    """Its timer goes with it."""
    find(bench, 1)
    bench.apply(ev.ForgetPoison(digest(1)))
    bench.tick(KEPT_SEC)
    assert kept(bench) == []
