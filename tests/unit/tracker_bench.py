"""The tracker's state for tests: fed event by event, checked after each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels
from fleet.errors import FleetError
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.core.state import TrackerState

T0 = 1_000_000.0


class Bench:
    """A tracker's state, the time, and short methods for events."""

    def __init__(self) -> None:
        self.state = TrackerState(boot=7, limits=TrackerLimits(max_waiting=5))
        self.now = T0

    def limits(self, **changed: int) -> TrackerLimits:
        """Return this bench's limits with a few changed."""
        return replace(self.state.limits, **changed)  # type: ignore[arg-type]

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        effects = self.state.apply(event, self.now)
        validate(self.state)
        return effects

    def attach(self, *names: str, agent: str = "agent", kind: str = "cpu", highest_epoch: int = 0) -> list[ev.Effect]:
        offered = tuple(replace(offer(name, kind), highest_epoch=highest_epoch) for name in names)
        return self.apply(ev.AgentAttached(agent, "host:1", offered))

    def connect(self, *clients: str) -> None:
        for client in clients:
            self.apply(ev.ClientConnected(client, f"{client}@host"))

    def acquire(self, client: str, request_id: str, selector: str = "cpu", **options: float) -> list[ev.Effect]:
        return self.apply(ev.Acquire(client, request_id, LeaseTerms(selector=selector, **options)))  # type: ignore[arg-type]

    def grant(self, client: str, request_id: str, selector: str = "cpu", **options: float) -> ev.Granted:
        (effect,) = self.acquire(client, request_id, selector, **options)
        assert isinstance(effect, ev.Granted)
        return effect

    def tick(self, sec: float) -> list[ev.Effect]:
        self.now += sec
        return self.apply(ev.Tick())

    def restart(self, away_sec: float = 0.0) -> None:
        self.now += away_sec
        durable = self.state.durable()
        durable.boot += 1
        self.state = TrackerState.restore(durable, self.now, self.state.limits)


def offer(name: str, kind: str = "cpu", **labels: str) -> ev.OfferedDevice:
    name = f"devices/{name}"
    return ev.OfferedDevice(name=name, kind=kind, labels=device_labels(name, kind, labels), description=b"")


def granted(effects: list[ev.Effect]) -> list[str]:
    return [effect.lease.request_id for effect in effects if isinstance(effect, ev.Granted)]


def refused(effects: list[ev.Effect]) -> list[tuple[str, type[FleetError]]]:
    return [(effect.request_id, effect.error_class) for effect in effects if isinstance(effect, ev.Refused)]


def checked_bench() -> Iterator[Bench]:
    """Yield a bench, and check the invariants of its state at the end."""
    bench = Bench()
    yield bench
    validate(bench.state)
