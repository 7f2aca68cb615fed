"""The tracker's turns: short ones, which do not penalize clients for the tracker's own stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fleet.domain.leases import LeaseTerms
from fleet.testing import FakeClock, Ledger, eventually
from fleet.tracker.core import events as ev
from fleet.tracker.core.state import TrackerState
from fleet.tracker.engine import Engine
from fleet.tracker.observers import Observer, Observers
from tests.unit.tracker_bench import offer


class Recorder(Observer):
    """Keeps all effects."""

    def __init__(self) -> None:
        self.effects: list[ev.Effect] = []

    def on_effect(self, effect: ev.Effect) -> None:
        self.effects.append(effect)


class Bench:
    """An engine on a memory journal, with a device, a client, and all effects."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger()
        self.state = TrackerState(boot=1)
        self.engine = Engine(self.state, self.ledger, self.clock)
        self.recorder = Recorder()
        self.engine.observers = Observers((self.recorder,))

    @property
    def effects(self) -> list[ev.Effect]:
        return self.recorder.effects

    async def start(self) -> None:
        await self.engine.ask(ev.AgentAttached("agent", "h:1", (offer("a"),)))
        await self.engine.ask(ev.ClientConnected("alice", "alice@here"))

    async def grant(self, ttl_sec: float) -> str:
        (effect,) = await self.engine.ask(ev.Acquire("alice", "r", LeaseTerms(selector="cpu", ttl_sec=ttl_sec)))
        assert isinstance(effect, ev.Granted)
        return effect.lease.name


@contextmanager
def stalls(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> Iterator[list[float]]:
    """Stall the loop for each length that is appended to the list, at its next reading of the clock."""
    loop = asyncio.get_running_loop()
    real, slept = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + sum(slept))
    yield slept
    monkeypatch.undo()


async def test_a_turn_leaves_room_for_others() -> None:
    """Of very many simultaneous events, only a few are answered before other tasks run."""
    bench = Bench()
    await bench.start()
    seen_by_others: list[int] = []
    for number in range(1_000):
        bench.engine.submit(ev.Acquire("alice", f"r{number}", LeaseTerms(selector="cpu")))

    def look() -> None:
        seen_by_others.append(len(bench.effects))
        if bench.state.arrivals < 1_000:
            asyncio.get_running_loop().call_soon(look)

    look()
    await eventually(lambda: bench.state.arrivals == 1_000)
    bench.engine.stop()

    assert len(seen_by_others) > 1_000 / 50


async def test_turns_wait_for_a_busy_journal_and_the_loop_does_not() -> None:
    """Requests are answered in order once the journal can be written."""
    bench = Bench()
    await bench.start()
    bench.ledger.is_busy = True

    first = asyncio.create_task(bench.engine.ask(ev.Acquire("alice", "r1", LeaseTerms(selector="cpu"))))
    second = asyncio.create_task(bench.engine.ask(ev.Acquire("alice", "r2", LeaseTerms(selector="cpu"))))
    other = asyncio.create_task(asyncio.to_thread(str))
    await eventually(other.done)
    assert [False, False] == [first.done(), second.done()]
    assert {} == bench.state.leases
    bench.ledger.is_busy = False

    assert [ev.Granted, ev.Queued] == [type(effect) for effect in (*await first, *await second)]
    bench.engine.stop()


async def test_the_journal_has_the_use_of_a_lease() -> None:
    """After a restart accounts keep their places: the charge is written with the grant."""
    bench = Bench()
    await bench.start()
    await bench.grant(ttl_sec=5.0)
    bench.engine.stop()

    assert [use.account for use in bench.ledger.open(0.0).uses] == ["alice@here"]


async def test_a_renewal_that_came_while_the_tracker_stood_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease expired during the stall; the renewal had arrived before, unread."""
    bench = Bench()
    await bench.start()
    name = await bench.grant(ttl_sec=5.0)
    loop = asyncio.get_running_loop()

    with stalls(monkeypatch, bench.clock) as slept:
        slept.append(7.0)
        bench.clock.advance(7.0)
        arrive_after(20, lambda: bench.engine.submit(ev.Renew("alice", name)), loop)
        renewed = await eventually(lambda: [e for e in bench.effects if isinstance(e, ev.Renewed)])
        bench.engine.stop()

    assert renewed[0].lease.expires_at_sec == bench.clock.now_sec() + 5.0
    assert not [effect for effect in bench.effects if isinstance(effect, ev.LeaseEnded)]


async def test_an_unrenewed_lease_expires_after_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pending messages delay the expiry by a moment only."""
    bench = Bench()
    await bench.start()
    await bench.grant(ttl_sec=5.0)

    with stalls(monkeypatch, bench.clock) as slept:
        slept.append(7.0)
        bench.clock.advance(7.0)
        await eventually(lambda: [e for e in bench.effects if isinstance(e, ev.LeaseEnded)])
        bench.engine.stop()


def arrive_after(turns: int, call: object, loop: asyncio.AbstractEventLoop) -> None:
    """Call something a few turns of the loop later, as a message on its way through gRPC."""
    if turns:
        loop.call_soon(arrive_after, turns - 1, call, loop)
    elif callable(call):
        call()


async def test_the_use_of_an_account_is_written_to_the_journal() -> None:
    bench = Bench()
    await bench.start()

    await bench.grant(ttl_sec=30.0)

    assert [use.account for use in bench.ledger.open(bench.clock.now_sec()).uses] == ["alice@here"]
