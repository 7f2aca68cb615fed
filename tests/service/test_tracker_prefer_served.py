"""A client that prefers a bitstream gets the board whose agent reports it, through real gRPC."""

from __future__ import annotations

import pytest

import fleet.aio
from fleet.errors import InvalidRequest
from fleet.testing import SimulatedAgent, eventually, serve_tracker

DIGEST = "sha256:" + "a" * 64


async def test_the_programmed_board_is_preferred() -> None:
    """The digest that an agent reports decides which of two free boards a client gets, and the snapshot shows it."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"], kind="zynq") as agent,
        fleet.aio.connect(served.address) as client,
    ):
        agent.report("devices/b", is_healthy=True, bitstream_digest=DIGEST)
        await eventually(lambda: served.tracker.state.devices["devices/b"].bitstream_digest == DIGEST)

        async with client.acquire("zynq", prefer=f"bitstream={DIGEST}") as device:
            assert device.name == "devices/b"
            async with client.acquire("zynq", prefer=f"bitstream={DIGEST}") as other:
                assert other.name == "devices/a"
        shown = {device.name: device.bitstream_digest for device in (await client.snapshot()).devices}
        assert shown == {"devices/a": "", "devices/b": DIGEST}


async def test_a_report_without_a_digest_means_unknown() -> None:
    """An invalid digest never becomes a label, and a fabric that lost its bitstream loses the label."""
    async with serve_tracker() as served, SimulatedAgent(served.address, ["devices/a"], kind="zynq") as agent:
        state = served.tracker.state
        agent.report("devices/a", is_healthy=True, bitstream_digest=DIGEST)
        await eventually(lambda: state.devices["devices/a"].bitstream_digest == DIGEST)

        agent.report("devices/a", is_healthy=True, bitstream_digest="a,b=c")
        await eventually(lambda: "bitstream" not in state.devices["devices/a"].labels)


async def test_malformed_preference_is_the_callers_mistake() -> None:
    """The client refuses it before any request."""
    async with serve_tracker() as served, fleet.aio.connect(served.address) as client:
        with pytest.raises(InvalidRequest, match="bitstream="):
            await client.acquire_device("zynq", prefer="bitstream=")
