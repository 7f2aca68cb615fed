"""Public fakes and helpers for tests of the fleet and of programs built on it."""

from fleet.testing.agent import SimulatedAgent
from fleet.testing.clock import FakeClock
from fleet.testing.lease_stream import LeaseStream
from fleet.testing.ledger import Ledger
from fleet.testing.tracker import ServedTracker, serve_tracker
from fleet.testing.waiting import eventually, eventually_sync

__all__ = [
    "FakeClock",
    "LeaseStream",
    "Ledger",
    "ServedTracker",
    "SimulatedAgent",
    "eventually",
    "eventually_sync",
    "serve_tracker",
]
