"""Selectors that compare, with a real agent, tracker and client."""

from __future__ import annotations

from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.errors import InvalidRequest, NoMatchingDevice
from fleet.testing import serve_tracker

pytestmark = pytest.mark.slow

_PI = {"driver": "simulated", "name": "pi", "board": "rpi4-64", "labels": {"rack": "3"}}
_BENCH = {"driver": "simulated", "name": "bench", "labels": {"mem": "64GiB", "fpga": "xc7z020"}}


async def test_devices_are_leased_by_their_inventory(tmp_path: Path) -> None:
    """The tracker compares memory, cores and target attributes that nobody configured, and explains refusals."""
    config = parse_config({"devices": [_PI, _BENCH]})
    async with (
        serve_tracker() as tracker,
        Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=tmp_path)) as agent,
        fleet.aio.connect(tracker.address) as client,
    ):
        assert await agent.wait_attached(60.0)
        for selector, name in [
            ("mem>=1GiB,mem<2GiB", "pi"),
            ("cores>=2", "pi"),
            ("num-cores>=4,mcpu=cortex-a72|cortex-a76", "pi"),
            ("mem>=2GiB", "bench"),
            ("fpga!=none", "bench"),
            ("fpga=none", "pi"),
        ]:
            async with client.acquire(selector) as device:
                assert device.name == f"devices/{name}", selector
            assert [one.name for one in await client.devices(selector)] == [f"devices/{name}"], selector

        with pytest.raises(NoMatchingDevice, match=r"\(cores>=2: 1 of 2; mem>=2GiB: none\)"):
            await client.acquire_device("mem>=2GiB,cores>=2")
        for refused in (client.acquire_device, client.check_selector, client.devices):
            with pytest.raises(InvalidRequest, match="rack>=3GiB compares a size"):
                await refused("rack>=3GiB")
