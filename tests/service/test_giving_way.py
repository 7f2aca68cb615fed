"""A device held for batch work is given back for requests of higher classes, and no trial is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import fleet.aio
from fleet.client.device import Device
from fleet.domain.leases import LeaseClass
from fleet.errors import InvalidRequest
from fleet.testing import LeaseStream, eventually
from fleet.v1 import measurement_pb2
from tests.service.odd_agent import OddAgent, artifact, good, measured, seated


class GatedAgent(OddAgent):
    """A data path that answers its third trial only after the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def measure(self, requests: Any, context: Any) -> AsyncIterator[measurement_pb2.MeasureResponse]:
        async for request in requests:
            self.measured.append(request.candidate_id)
            if len(self.measured) == 3:
                await self.gate.wait()
            yield measurement_pb2.MeasureResponse(measurement=good(request))


async def test_a_batch_lease_is_given_back_after_the_trial_under_way(tmp_path: Path) -> None:
    """The other trials are measured under the next lease, in order; the interactive user waits for one trial."""
    agent = GatedAgent()
    async with (
        seated(agent=agent, lease_class=LeaseClass.BATCH) as (_, seat, notices),
        fleet.aio.connect(seat.client.address) as other,
    ):
        measuring = asyncio.create_task(measured(seat, artifact(tmp_path), 6))
        await eventually(lambda: len(agent.measured) == 3)
        device = await seat.device()
        async with asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(other.acquire_device("simulated", lease_class=LeaseClass.INTERACTIVE))
            await eventually(lambda: device.yield_wanted is not None)
            assert not asked.done()
            agent.gate.set()
        results_before = list(agent.measured)
        assert not measuring.done()
        await asked.result().release()
        results = await measuring

    assert results_before[:3] == ["0", "1", "2"]
    assert [(result.candidate_id, result.error) for result in results] == [(str(i), None) for i in range(6)]
    assert notices == ["devices/odd is needed for a request of the class interactive; waiting for a device to go on"]


async def test_an_idle_batch_lease_is_given_back_at_once(tmp_path: Path) -> None:
    async with (
        seated(lease_class=LeaseClass.BATCH) as (_, seat, _),
        fleet.aio.connect(seat.client.address) as other,
    ):
        await measured(seat, artifact(tmp_path), 2)
        assert seat.name == "devices/odd"

        device = await other.acquire_device("simulated", lease_class=LeaseClass.NORMAL, wait_timeout_sec=20.0)

        assert (device.name, seat.name) == ("devices/odd", "")
        await device.release()


async def test_a_lease_that_gives_way_while_its_session_opens_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user gets the device first, and no trial is lost."""
    opening, may_return = Device.open, asyncio.Event()

    async def open_late(device: Device) -> None:
        await opening(device)
        await may_return.wait()

    monkeypatch.setattr(Device, "open", open_late)
    async with (
        seated(lease_class=LeaseClass.BATCH) as (_, seat, _),
        fleet.aio.connect(seat.client.address) as other,
    ):
        measuring = asyncio.create_task(measured(seat, artifact(tmp_path), 2))
        await eventually(lambda: seat.name == "devices/odd")
        device = await other.acquire_device("simulated", lease_class=LeaseClass.NORMAL, wait_timeout_sec=20.0)
        may_return.set()
        await device.release()
        results = await measuring

    assert [result.error for result in results] == [None, None]


async def test_an_unknown_class_is_refused_without_ending_the_stream() -> None:
    async with seated() as (_, seat, _), LeaseStream(seat.client.address, "0") as stream:
        stream.acquire("odd", "simulated", lease_class=9)  # type: ignore[arg-type]
        await eventually(lambda: "odd" in stream.refused)
        await stream.grant("good", "simulated")

    refused = stream.refused["odd"]
    assert refused.error_class == InvalidRequest.__name__
    assert refused.message == "class 9 of a request is unknown; choose one of interactive, normal, batch"
