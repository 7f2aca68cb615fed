"""The agent's stream to its tracker, in the moments in which something else happens, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from device_agents.admission import Admission
from device_agents.attach import TrackerLink
from device_agents.pool import WorkerPool
from device_agents.served import ServedDevice
from device_agents.sessions import SessionTable
from device_agents.simulated import SimulatedDriver
from device_agents.store import ArtifactStore
from device_agents.tracker_clock import TrackerClock
from device_agents.watchdog import Limits
from fleet.rpc import Stub
from fleet.testing import eventually, serve_tracker
from fleet.v1 import agent_service_pb2, device_pb2

pytestmark = pytest.mark.slow


class Agent:
    """One device, told with a label that is as new as its hello."""

    def __init__(self, folder: Path) -> None:
        limits = Limits(memory_bytes=2**30, disk_bytes=2**30)
        self.pool = WorkerPool(folder / "workers", [], limits)
        (self.driver,) = SimulatedDriver.from_config({"name": "sim"}, where="test", host_name="here")
        self.device = ServedDevice(self.driver, asyncio.Lock())
        self.label = "old"
        self.clock = TrackerClock()
        store = ArtifactStore(folder / "artifacts", 1000)
        self.table = SessionTable([self.device], Admission([self.device.name], self.clock), self.pool, store)

    def hello(self) -> agent_service_pb2.AgentHello:
        inventory = device_pb2.Inventory(kind="simulated", labels={"age": self.label})
        devices = [device_pb2.Device(name=self.device.name, inventory=inventory)]
        return agent_service_pb2.AgentHello(agent_id="agent", address=":1", devices=devices)


@asynccontextmanager
async def linked(folder: Path, address: str) -> AsyncIterator[tuple[Agent, TrackerLink, asyncio.Task[None]]]:
    agent = Agent(folder)
    await agent.driver.open(agent.pool)
    link = TrackerLink(address, agent.hello, [agent.device], agent.clock, agent.table)
    running = asyncio.create_task(link.run())
    try:
        yield agent, link, running
    finally:
        while not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=1)
        await agent.driver.close()


async def test_a_device_is_never_well_under_its_former_description(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was missing and is here now: the old stream does not report what only the new hello explains."""
    monkeypatch.setattr("device_agents.attach._HEALTH_SEC", 0.01)
    monkeypatch.setattr("device_agents.attach._HEARTBEAT_SEC", 0.02)
    seen: set[tuple[str, bool]] = set()
    async with serve_tracker() as tracker, linked(tmp_path, tracker.address) as (agent, link, _):
        devices = tracker.tracker.engine.state.devices
        tracker.tracker.engine.changed = lambda _: seen.update(
            (device.labels["age"], device.is_healthy) for device in devices.values()
        )
        monkeypatch.setattr(agent.device, "_fault", lambda: "missing")
        await asyncio.wait_for(link.attached.wait(), 10)
        await eventually(lambda: seen == {("old", False)})
        greet = link._greet

        async def greet_late(channel: Any) -> Any:
            await asyncio.sleep(0.2)  # a driver that hangs keeps the first reports back
            return await greet(channel)

        monkeypatch.setattr(link, "_greet", greet_late)
        monkeypatch.setattr(agent.device, "_fault", lambda: "")
        agent.label = "new"
        link.attach_anew()

        await eventually(lambda: ("new", True) in seen)

    assert ("old", True) not in seen


async def test_an_end_in_the_moment_of_the_first_answer_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the agent would stay attached, and whoever closes it would wait for ever."""
    async with serve_tracker() as tracker, linked(tmp_path, tracker.address) as (_, _, running):
        answers: list[Any] = []

        class Ending:
            """Passes everything on, and ends the link in the step in which the first answer is read."""

            def __init__(self, call: Any) -> None:
                self._call = call

            def __getattr__(self, name: str) -> Any:
                return getattr(self._call, name)

            async def read(self) -> Any:
                answer = await self._call.read()
                if not answers:
                    asyncio.get_running_loop().call_soon(running.cancel)
                answers.append(answer)
                return answer

        def stub(*words: Any) -> Any:
            made = Stub(*words)
            attach = made.attach
            made.attach = lambda: Ending(attach())
            return made

        monkeypatch.setattr("device_agents.attach.Stub", stub)
        await asyncio.wait((running,), timeout=10)
        ended = running.done()

    assert ended
