"""Retries and costs on a device that is lost, or that fails one candidate after another."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from fleet.artifacts.artifact import Artifact
from fleet.client.steady import SteadyDevice
from fleet.domain.leases import make_terms
from fleet.domain.measuring import ErrorKind, Trial
from fleet.errors import DeviceClosed
from fleet.optimizer.core.events import Measure, Measured, MeasureEnded
from fleet.optimizer.measurer import RUN_OF_ERRORS, Measurer
from fleet.testing import serve_tracker
from tests.service.odd_agent import artifact, seated

COUNT = 8


async def measured(measurer: Measurer, built: Artifact, numbers: range) -> tuple[list[ErrorKind | None], MeasureEnded]:
    """Measure trials; return the errors, and the end of the batch."""
    trials = tuple(Trial(candidate_id=str(number), artifact_digest=built.digest) for number in numbers)
    errors: list[ErrorKind | None] = []
    async with aclosing(measurer.measure(Measure(batch=1, artifacts=(built,), trials=trials))) as events:
        async for event in events:
            if isinstance(event, Measured):
                errors.append(event.measurement.error)
            else:
                return errors, event
    raise AssertionError("the batch never ended")


@pytest.mark.slow
async def test_a_run_of_errors_stops_the_batch_until_the_agent_finds_the_device_healthy(tmp_path: Path) -> None:
    """The rest is not sent; the device is released, so that its agent takes it out of service until it recovers."""
    settings = {"time_scale": 0.0, "disconnect_after": RUN_OF_ERRORS, "reconnect_sec": 3.0}
    config = parse_config({"devices": [{"driver": "simulated", "name": "sim", **settings}]})
    (tmp_path / "bad.so").write_bytes(b"crash")
    (tmp_path / "good.so").write_bytes(b"good")
    bad, good = (Artifact.of_file(tmp_path / name) for name in ("bad.so", "good.so"))
    async with serve_tracker() as tracker:
        agent = Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=tmp_path / "agent"))
        async with (
            agent,
            fleet.aio.connect(tracker.address) as client,
            SteadyDevice(client, make_terms("simulated", purpose="test")) as device,
        ):
            assert await agent.wait_attached(60.0)
            measurer = Measurer(device)
            errors, end = await measured(measurer, bad, range(COUNT))
            held = device.name
            later, calm_end = await measured(measurer, good, range(COUNT, COUNT + 2))

    assert errors == [ErrorKind.CRASHED] * RUN_OF_ERRORS
    assert (end.is_suspected, end.device_name, held) == (True, "devices/sim", "")
    assert later == [None, None]
    assert not calm_end.is_suspected


async def test_waiting_for_a_lost_device_is_not_the_price_of_a_batch(tmp_path: Path) -> None:
    """A board that was away for an hour in one batch does not make all later ones dear: waiting never counts as
    running."""
    pause_sec = 0.1
    async with seated(pauses_sec=(pause_sec,) * 3) as (agent, device, _):
        await device.device()
        agent.refuses_measure = [DeviceClosed("the agent is shutting down")]
        began_at = time.monotonic()
        errors, end = await measured(Measurer(device), artifact(tmp_path), range(2))
        took_sec = time.monotonic() - began_at

    assert errors == [None, None]
    assert 0 <= end.wall_sec <= took_sec - pause_sec
