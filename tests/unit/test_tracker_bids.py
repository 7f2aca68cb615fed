"""Bids order the requests of one user, and leave the turns of others unchanged."""

from __future__ import annotations

import math

import pytest

from fleet.domain.leases import LeaseTerms
from fleet.domain.selectors import device_labels
from fleet.errors import InvalidRequest
from fleet.tracker.core import events as ev
from fleet.tracker.core.invariants import validate
from fleet.tracker.core.records import Durable
from fleet.tracker.core.state import TrackerState

BOARD = "devices/a"


def fed(state: TrackerState, *events: ev.Event) -> list[ev.Effect]:
    effects = [effect for event in events for effect in state.apply(event, 1_000.0)]
    validate(state)
    return effects


def joined() -> tuple[ev.Event, ...]:
    offer = ev.OfferedDevice(name=BOARD, kind="cpu", labels=device_labels(BOARD, "cpu", {}), description=b"")
    clients = [ev.ClientConnected(name, f"{name[:-1]}@host") for name in ("alice1", "alice2", "bob1")]
    return ev.AgentAttached("agent", "host:1", (offer,)), *clients


def next_holder(state: TrackerState) -> str:
    """End the lease of the board and return the client of the request that gets it."""
    lease = state.devices[BOARD].lease
    assert lease is not None
    granted = [
        effect for effect in fed(state, ev.Release(lease.client_id, lease.name)) if isinstance(effect, ev.Granted)
    ]
    return granted[0].lease.client_id


def test_a_higher_bid_takes_ones_own_turn_and_gives_its_place_for_it() -> None:
    """Alice's second process takes the place of her first, which goes after Bob in turn."""
    state = TrackerState(boot=1)
    fed(state, *joined(), ev.Acquire("bob1", "0", LeaseTerms(selector="cpu")))
    fed(
        state,
        ev.Acquire("alice1", "1", LeaseTerms(selector="cpu", bid=1.0)),
        ev.Acquire("bob1", "2", LeaseTerms(selector="cpu", bid=9.0)),
    )
    fed(state, ev.Acquire("alice2", "3", LeaseTerms(selector="cpu", bid=2.0)))

    assert ["alice2", "bob1", "alice1"] == [next_holder(state) for _ in range(3)]


def test_changed_positions_outlast_a_restart_and_bids_are_sent_again() -> None:
    """The journal keeps places; a bid comes back with its request."""
    state = TrackerState(boot=1)
    fed(state, *joined(), ev.Acquire("bob1", "0", LeaseTerms(selector="cpu")))
    fed(
        state,
        ev.Acquire("alice1", "1", LeaseTerms(selector="cpu")),
        ev.Acquire("bob1", "2", LeaseTerms(selector="cpu")),
    )
    fed(
        state,
        ev.Acquire("alice1", "3", LeaseTerms(selector="cpu", bid=1.0)),
        ev.Acquire("alice2", "4", LeaseTerms(selector="cpu", bid=2.0)),
    )
    assert next_holder(state) == "alice2"
    waiting = [request for request in state.changes.requests.values() if request is not None]

    again = TrackerState.restore(Durable(boot=2, devices=list(state.devices.values()), requests=waiting), 1_000.0)
    fed(again, *joined())
    for client, request_id, bid in (("bob1", "2", 0.0), ("alice1", "1", 0.0), ("alice1", "3", 5.0)):
        fed(again, ev.Acquire(client, request_id, LeaseTerms(selector="cpu", bid=bid)))

    assert ["bob1", "alice1", "alice1"] == [next_holder(again) for _ in range(3)]


@pytest.mark.parametrize("bid", [-1.0, math.nan, math.inf])
def test_negative_and_nonfinite_bids_are_refused(bid: float) -> None:
    """The tracker refuses it."""
    state = TrackerState(boot=1)
    fed(state, *joined())

    (effect,) = fed(state, ev.Acquire("alice1", "1", LeaseTerms(selector="cpu", bid=bid)))

    assert isinstance(effect, ev.Refused)
    assert effect.error_class is InvalidRequest
