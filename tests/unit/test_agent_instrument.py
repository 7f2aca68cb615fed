"""Times of the calls within a run, from an instrument's notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from device_agents.runtimes.contract import CandidateFailed
from device_agents.runtimes.instrument import own_secs, profile_calls


class Machine:
    """Calls its functions one after the other, as a Relax VM does; each takes one tick more than the one before."""

    def __init__(self, *runs: list[str]) -> None:
        self._runs = iter(runs)
        self._now_sec = 0.0
        self.clock: Callable[[], float] = lambda: self._now_sec

    def set_instrument(self, note: Callable[..., None]) -> None:
        self._note = note

    def run(self) -> None:
        for ticks, function in enumerate(next(self._runs), start=1):
            self._note(None, function, True, None, "an argument")
            self._now_sec += ticks
            self._note(None, function, False, "result", "an argument")


def test_each_call_is_timed_over_all_runs() -> None:
    """A function that is called twice has two times: each in its place."""
    machine = Machine(*[["conv", "relu", "conv"]] * 3)

    profile = profile_calls(machine.run, machine.set_instrument, 3, clock=machine.clock)

    assert [(call.function, call.min_sec, call.median_sec) for call in profile.calls] == [
        ("conv", 1, 1),
        ("relu", 2, 2),
        ("conv", 3, 3),
    ]
    assert profile.run_secs == (6, 6, 6)


def test_a_call_pays_for_itself_alone() -> None:
    """The times of a run's calls add up to the run, also where functions of the VM call others."""
    events = [
        ("branch", True, 0.0),
        ("conv", True, 1.0),
        ("conv", False, 5.0),
        ("relu", True, 5.0),
        ("relu", False, 6.0),
        ("branch", False, 8.0),
    ]

    assert own_secs(events) == [("branch", 3.0), ("conv", 4.0), ("relu", 1.0)]


def test_runs_with_different_calls_have_no_profile() -> None:
    """Times of different calls are never combined."""
    machine = Machine(["conv"], ["conv", "relu"])

    with pytest.raises(CandidateFailed, match="other functions"):
        profile_calls(machine.run, machine.set_instrument, 2, clock=machine.clock)


def test_a_device_that_works_on_its_own_is_waited_for() -> None:
    """Its work counts for the call that started it, so the clock is read once it is done."""
    machine = Machine(["conv"])
    waits: Iterator[int] = iter(range(100))

    profile_calls(machine.run, machine.set_instrument, 1, synchronize=lambda: next(waits), clock=machine.clock)

    assert next(waits) == 3
