"""`fleet request why` over TLS."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

import fleet.aio
from fleet.cli.main import app
from fleet.domain.waits import WaitReason
from fleet.errors import NotFound
from fleet.testing import LeaseStream, SimulatedAgent, eventually, serve_tracker


async def test_a_user_learns_why_a_request_waits() -> None:
    """Share, devices and the gain from leaving out a clause, as text and as JSON."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/a", "devices/b"]),
        LeaseStream(served.address, "one") as one,
        fleet.aio.connect(served.address) as client,
    ):
        await one.grant("r1", "name=a")
        one.acquire("r2", "name=a,kind=simulated")
        await eventually(lambda: "r2" in one.queued)

        found = await client.explain_request("r2")

        assert found.request.wait is not None
        assert found.request.wait.reason is WaitReason.LEASED
        assert [each.device_name for each in found.candidates] == ["devices/a"]
        assert {each.clause: each.free_count for each in found.omissions} == {"kind=simulated": 0, "name=a": 1}
        with pytest.raises(NotFound, match="no request 'none' waits"):
            await client.explain_request("none")
        words = ["--tracker", served.address, "request", "why", "r2"]
        shown = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert "without name=a: now, 1 of 2 devices is free" in shown.stdout
        as_json = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--json"])
        assert json.loads(as_json.stdout)["device_count"] == 1
