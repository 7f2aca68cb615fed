"""Moments to come: kept once for each subject, gone when they no longer matter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.tracker.core import events as ev
from fleet.tracker.core.timers import Timers
from tests.unit.tracker_bench import Bench, checked_bench, granted

TEN_YEARS_SEC = 10 * 365 * 86400.0


@pytest.fixture
def bench() -> Iterator[Bench]:
    yield from checked_bench()


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 20))), max_size=600))
def test_timers_match_a_dictionary_model(steps: list[tuple[int, int | None]]) -> None:
    """After any order of setting and cancelling, exactly the valid timers are due, earliest first."""
    timers, expected = Timers(), dict[int, int]()
    due: list[int] = []
    for key, at_sec in steps:
        if at_sec is None:
            timers.cancel(key)
            expected.pop(key, None)
        else:
            timers.set(key, at_sec, lambda key=key: due.append(key))  # type: ignore[misc]
            expected[key] = at_sec

    assert timers.next_sec() == min(expected.values(), default=None)
    for call in timers.pop_due(10, limit=100):
        call()

    assert sorted(due) == sorted(key for key, at_sec in expected.items() if at_sec <= 10)
    assert [expected[key] for key in due] == sorted(expected[key] for key in due)
    assert len(timers) == len(expected) - len(due)


def test_due_timers_come_in_portions() -> None:
    """Ten thousand leases that end together do not block other events."""
    timers = Timers()
    for number in range(100):
        timers.set(number, 1.0, lambda: None)

    assert [len(list(timers.pop_due(2.0, limit=30))) for _ in range(5)] == [30, 30, 30, 10, 0]


def test_a_timer_that_is_set_again_for_its_moment_keeps_its_place() -> None:
    """Timers that each event sets again for the same moment take no more memory, and fire in their first order."""
    timers, fired = Timers(), list[str]()
    calls = {name: partial(fired.append, name) for name in ("first", "second")}
    for name in ("first", "second", "first"):
        timers.set(name, 1.0, calls[name])

    for call in timers.pop_due(1.0, limit=3):
        call()

    assert fired == ["first", "second"]


def test_a_cancelled_wait_cleans_up(bench: Bench) -> None:
    """Timers of cancelled waits, even of ten years, and of released leases are removed."""
    bench.attach("a")
    bench.connect("alice")
    lease = bench.grant("alice", "held").lease
    for number in range(2_000):
        bench.acquire("alice", f"r{number}", wait_timeout_sec=TEN_YEARS_SEC)
        bench.apply(ev.Cancel("alice", f"r{number}"))
    bench.apply(ev.Release("alice", lease.name))

    assert len(bench.state.timers) == 0
    assert bench.state.next_timer_sec() is None


@pytest.mark.parametrize("is_taken_up", [True, False])
def test_a_wait_from_before_a_newer_stream_cleans_up(bench: Bench, *, is_taken_up: bool) -> None:
    """Its deadline of ten years is removed, whether or not its client repeats the request."""
    bench.attach("a")
    bench.connect("alice", "bob")
    lease = bench.grant("alice", "held").lease
    bench.acquire("bob", "r", wait_timeout_sec=TEN_YEARS_SEC)
    bench.connect("bob")
    bench.apply(ev.Release("alice", lease.name))
    if is_taken_up:
        bench.apply(ev.Release("bob", bench.grant("bob", "r").lease.name))
    bench.tick(bench.state.limits.grace_sec)

    assert len(bench.state.timers) == 0


def test_a_lost_client_gets_no_lease(bench: Bench) -> None:
    """Very many requests leave a portion at a time; a device that is freed meanwhile goes to a connected client."""
    bench.state.limits = bench.limits(max_waiting=10_000)
    bench.attach("a")
    bench.connect("gone", "alice")
    lease = bench.grant("alice", "held").lease
    for number in range(500):
        bench.acquire("gone", f"r{number}")
    bench.acquire("alice", "next")

    bench.state.apply(ev.ClientLost("gone"), bench.now)
    effects = bench.state.apply(ev.Release("alice", lease.name), bench.now)
    while (next_sec := bench.state.next_timer_sec()) is not None and next_sec <= bench.now:
        bench.state.apply(ev.Tick(), bench.now)

    assert granted(effects) == ["next"]
    assert "gone" not in bench.state.clients
    assert len(bench.state.waiting) == 0
