"""Blame for a device that turned unhealthy, and the agent's list of poison."""

from __future__ import annotations

import pytest

from device_agents.serving.poison import PoisonList, Suspicion
from fleet.domain.poison import KEPT_SEC, MAX_POISON
from fleet.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def suspicion(clock: FakeClock) -> Suspicion:
    return Suspicion(clock.now_sec)


def test_a_program_is_to_blame_if_the_device_turns_unhealthy_while_it_runs(suspicion: Suspicion) -> None:
    """The program is reported once."""
    suspicion.begin("p")

    assert suspicion.note_health(is_healthy=True) == ""
    assert suspicion.note_health(is_healthy=False) == "p"
    assert suspicion.note_health(is_healthy=False) == ""


@pytest.mark.parametrize(("after_sec", "blamed"), [(14.0, "p"), (16.0, "")])
def test_a_failed_program_is_to_blame_for_a_while(
    suspicion: Suspicion, clock: FakeClock, after_sec: float, blamed: str
) -> None:
    suspicion.begin("p")
    suspicion.end(is_failed=True)
    clock.advance(after_sec)

    assert suspicion.note_health(is_healthy=False) == blamed


def test_a_program_that_did_well_is_not_to_blame(suspicion: Suspicion) -> None:
    suspicion.begin("p")
    suspicion.end(is_failed=False)

    assert suspicion.note_health(is_healthy=False) == ""


def test_a_program_is_not_to_blame_for_a_device_that_was_unhealthy_before(suspicion: Suspicion) -> None:
    suspicion.note_health(is_healthy=False)
    suspicion.begin("p")
    suspicion.end(is_failed=True)

    assert suspicion.note_health(is_healthy=False) == ""
    assert suspicion.note_health(is_healthy=True) == ""
    assert suspicion.note_health(is_healthy=False) == ""


def test_a_device_that_may_have_been_unplugged_is_proof_at_the_second_time(clock: FakeClock) -> None:
    """Another program in between changes nothing; very many programs displace the oldest."""
    poison = PoisonList(clock.now_sec)
    poison.blame("p", "devices/a", may_be_chance=True)
    poison.blame("q", "devices/a", may_be_chance=True)
    assert not poison.has("p")

    poison.blame("p", "devices/b", may_be_chance=True)
    assert (poison.has("p"), poison.has("q")) == (True, False)
    for number in range(MAX_POISON):
        poison.blame(str(number), "devices/a", may_be_chance=True)
    poison.blame("q", "devices/a", may_be_chance=True)
    assert not poison.has("q")


def test_an_agent_reports_its_poison_until_the_tracker_has_it(clock: FakeClock) -> None:
    """From then on, the tracker decides for how long."""
    poison = PoisonList(clock.now_sec)
    poison.add("p", "devices/a")
    assert (poison.unsent(), poison.has("p"), poison.has("q")) == ({"p": "devices/a"}, True, False)

    poison.learn("p", 100.0)

    assert (poison.unsent(), poison.has("p")) == ({}, True)
    clock.advance(101.0)
    assert not poison.has("p")


def test_an_agent_forgets_poison_after_seven_days_at_most(clock: FakeClock) -> None:
    """Whatever the tracker says."""
    poison = PoisonList(clock.now_sec)
    poison.add("p", "devices/a")
    poison.learn("q", 1e12)
    poison.learn("r", -5.0)
    assert [poison.has(name) for name in "pqr"] == [True, True, False]

    clock.advance(KEPT_SEC + 1.0)

    assert not any(map(poison.has, "pqr"))


def test_an_agent_remembers_a_thousand(clock: FakeClock) -> None:
    """The latest ones."""
    poison = PoisonList(clock.now_sec)
    for number in range(MAX_POISON + 1):
        poison.add(f"{number}", "devices/a")

    assert not poison.has("0")
    assert poison.has("1")
    assert len(poison.unsent()) == MAX_POISON


def test_forgotten_poison_runs_again(clock: FakeClock) -> None:
    """It is blamed anew like any other program, at the second time if the device may have been unplugged."""
    poison = PoisonList(clock.now_sec)
    poison.add("mine", "devices/a")
    poison.learn("theirs", KEPT_SEC)
    poison.blame("doubted", "devices/a", may_be_chance=True)

    for digest in ("mine", "theirs", "doubted", "unknown"):
        poison.forget(digest)
    poison.blame("doubted", "devices/a", may_be_chance=True)

    assert [poison.has(digest) for digest in ("mine", "theirs", "doubted")] == [False, False, False]
    assert poison.unsent() == {}


def test_a_trackers_whole_list_replaces_what_it_sent_before(clock: FakeClock) -> None:
    """Programs that the tracker does not have yet stay, so that older trackers change nothing."""
    poison = PoisonList(clock.now_sec)
    poison.learn("former", KEPT_SEC)
    poison.add("mine", "devices/a")

    poison.begin()
    poison.learn("new", KEPT_SEC)

    assert [poison.has(digest) for digest in ("former", "mine", "new")] == [False, True, True]
