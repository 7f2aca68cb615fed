"""Agents at the tracker through real gRPC: their streams, devices and health."""

from __future__ import annotations

import pytest

from fleet.errors import AlreadyExists, InvalidRequest
from fleet.testing import LeaseStream, ServedTracker, SimulatedAgent, eventually
from fleet.v1 import device_pb2
from tests.service.served_tracker import served as served
from tests.service.served_tracker import snapshot


async def test_agent_that_detaches_leaves_its_device_offline(served: ServedTracker) -> None:
    """Snapshots show it as offline, and its lease continues."""
    async with LeaseStream(served.address, "c") as stream:
        async with SimulatedAgent(served.address, ["devices/a"]):
            granted = await stream.grant("r1", "simulated")

        await eventually(lambda: not served.tracker.state.devices["devices/a"].is_attached)

        shown = await snapshot(served.address)
        assert [device.state for device in shown.devices] == [device_pb2.DEVICE_STATE_OFFLINE]
        assert [lease.name for lease in shown.leases] == [granted.lease.name]


async def test_unhealthy_device_is_shown_as_faulted(served: ServedTracker) -> None:
    """The snapshot has the agent's reason and its readings."""
    async with SimulatedAgent(served.address, ["devices/a"]) as agent:
        agent.report("devices/a", is_healthy=False, reason="fan broken", temp_c=99.0)

        await eventually(lambda: not served.tracker.state.devices["devices/a"].is_healthy)

        (device,) = (await snapshot(served.address)).devices
        assert (device.state, device.reason) == (device_pb2.DEVICE_STATE_FAULTED, "fan broken")
        assert device.telemetry.temp_c == 99.0


async def test_second_agent_with_the_same_device_is_refused(served: ServedTracker) -> None:
    """Device names are unique among attached agents."""
    async with SimulatedAgent(served.address, ["devices/a"], agent_id="one"):
        with pytest.raises(AlreadyExists, match="devices/a"):
            await SimulatedAgent(served.address, ["devices/a"], agent_id="two").open()


@pytest.mark.parametrize(
    ("names", "kind", "address"),
    [
        (["pi4"], "cpu", ":1"),
        (["devices/../x"], "cpu", ":1"),
        (["devices/a", "devices/a"], "cpu", ":1"),
        (["devices/a"], "CPU!", ":1"),
        (["devices/a"], "cpu", "nowhere"),
        (["devices/a"], "cpu", "host:99999"),
    ],
)
async def test_malformed_agent_is_refused(served: ServedTracker, names: list[str], kind: str, address: str) -> None:
    """Names, kinds and addresses are checked before anything is taken in."""
    with pytest.raises(InvalidRequest):
        await SimulatedAgent(served.address, names, kind=kind, address=address).open()

    assert not served.tracker.state.devices


async def test_stream_without_hello_is_refused(served: ServedTracker) -> None:
    """A client or agent without an id is refused."""
    with pytest.raises(InvalidRequest, match="client_id"):
        await LeaseStream(served.address, "").open()
    with pytest.raises(InvalidRequest, match="agent_id"):
        await SimulatedAgent(served.address, [], agent_id="").open()
