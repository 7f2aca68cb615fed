"""Long work of the tracker is divided into turns; tests count portions, since times depend on the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from fleet.domain.leases import LeaseTerms
from fleet.testing import FakeClock, SimulatedAgent, eventually, serve_tracker
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.core.state import TrackerState
from fleet.tracker.pace import Pace
from fleet.tracker.view import FleetView
from fleet.v1 import fleet_service_pb2
from tests.unit.tracker_bench import offer

DEVICES = 200


@contextmanager
def every_turn(call: Callable[[], None]) -> Iterator[None]:
    """Call in each turn of the loop."""
    loop, is_over = asyncio.get_running_loop(), False

    def again() -> None:
        if not is_over:
            call()
            loop.call_soon(again)

    again()
    try:
        yield
    finally:
        is_over = True


async def test_a_hello_of_many_devices_is_taken_in_turn_by_turn() -> None:
    """Each turn of the loop attaches a few devices; they detach in the same way, and none stays."""
    attached: list[int] = []
    async with serve_tracker() as served:
        state, pace = served.tracker.state, served.tracker.pace

        def look() -> None:
            attached.append(sum(device.is_attached for device in state.devices.values()))

        with every_turn(look):
            async with SimulatedAgent(served.address, [f"devices/d{number}" for number in range(DEVICES)]):
                assert attached[-1] == DEVICES
            came, attached[:] = attached[:], attached[-1:]
            await eventually(lambda: attached[-1] == 0)

    assert max(after - before for before, after in pairwise(came)) <= 8
    assert pace.portions >= DEVICES / 8
    assert len(set(attached)) > 2


class Watched:
    """A fleet of many devices that change hands in every turn of the loop, and its view."""

    def __init__(self) -> None:
        self.state, self.pace = TrackerState(boot=1), Pace()
        self.clock = FakeClock()
        self.apply(ev.AgentAttached("agent", "h:1", tuple(offer(f"d{number:03}") for number in range(DEVICES))))
        self.apply(ev.ClientConnected("alice", "alice@here"))
        self.state.take_changes()
        self.view = FleetView(Queries(self.state), self.clock, self.pace)
        self.held: list[LeaseEntry] = []
        self.count = 0

    def apply(self, event: ev.Event) -> list[ev.Effect]:
        return self.state.apply(event, 1_000_000.0)

    def change(self) -> None:
        """Lease two devices, and release one."""
        for _ in range(2):
            self.count += 1
            effects = self.apply(ev.Acquire("alice", f"r{self.count}", LeaseTerms(selector="cpu")))
            self.held += [effect.lease for effect in effects if isinstance(effect, ev.Granted)]
        self.apply(ev.Release("alice", self.held.pop(0).name))
        self.view.on_change(self.state.take_changes())

    async def snapshot(self) -> fleet_service_pb2.Snapshot:
        return fleet_service_pb2.GetFleetResponse.FromString((await self.view.encoded_snapshot()).content).snapshot


async def test_a_snapshot_is_of_one_moment_though_it_takes_many() -> None:
    """Devices and leases in it belong together, while others go on; both are sorted by name."""
    fleet = Watched()

    with every_turn(fleet.change):
        first = await fleet.snapshot()
        second = await fleet.snapshot()

    for snapshot in (first, second):
        named = [device.lease_name for device in snapshot.devices if device.lease_name]
        assert named
        assert sorted(named) == [lease.name for lease in snapshot.leases]
        assert [f"devices/d{number:03}" for number in range(DEVICES)] == [device.name for device in snapshot.devices]
    assert first.version < second.version
    assert fleet.pace.portions > DEVICES / 64


async def test_unchanged_parts_of_a_snapshot_are_reused() -> None:
    """After a device changed hands a snapshot takes a few portions, in a fleet of any size."""
    fleet = Watched()
    await fleet.snapshot()
    before = fleet.pace.portions

    fleet.change()
    after = await fleet.snapshot()

    assert 1 == len(after.leases)
    assert fleet.pace.portions - before <= 5
