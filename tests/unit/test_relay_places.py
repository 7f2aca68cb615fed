"""Limits of a relay's connections."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from fleet.relay.places import Places, RelayLimits, Silent
from fleet.relay.refusal import Refusal, Refused

LIMITS = RelayLimits(silent=4, silent_of_source=2, total=6, of_source=4, of_agent=3, of_agent_and_source=2)


def refusal_of(place: AbstractContextManager[None]) -> Refusal | None:
    try:
        with place:
            return None
    except Refused as refused:
        return refused.reason


def test_silent_connections_give_way_to_newer_ones() -> None:
    """First the oldest of the same source, then the oldest of all: nobody else is kept out by silence."""
    silent = Silent[str](LIMITS)

    assert [silent.add(name, "a") for name in ("a1", "a2", "a3")] == [None, None, "a1"]
    assert [silent.add(f"{name}1", name) for name in "bcd"] == [None, None, "a2"]
    silent.remove("a3")
    silent.remove("a3")
    assert silent.add("e1", "e") is None


def test_connections_are_limited_by_source_and_agent() -> None:
    """One source fills neither the relay nor an agent, and released places are available again."""
    places = Places(LIMITS)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(places.connection("a"))
        assert refusal_of(places.connection("a")) is Refusal.FULL
        for _ in range(2):
            stack.enter_context(places.connection("b"))
            stack.enter_context(places.client("a", "key"))
        assert refusal_of(places.connection("c")) is Refusal.FULL
        assert refusal_of(places.client("a", "key")) is Refusal.BUSY_AGENT
        assert refusal_of(places.client("a", "other")) is None
        stack.enter_context(places.client("b", "key"))
        assert refusal_of(places.client("c", "key")) is Refusal.BUSY_AGENT

    assert places.count() == 0
