"""Devices that come while the agent runs, with the real tracker and the real client, on simulated devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.driver import Driver
from device_agents.serving.hotplug import Hotplug
from fleet.artifacts.artifact import Artifact
from fleet.domain.measuring import Trial
from fleet.testing import ServedTracker, eventually, serve_tracker

pytestmark = pytest.mark.slow


class Shelf:
    """A finder with the devices that a test puts there."""

    preload = "device_agents.runtimes.simulated"

    def __init__(self) -> None:
        self.devices: list[Driver] = []
        self.news = asyncio.Event()

    def put(self, name: str) -> None:
        entry = {"driver": "simulated", "name": name, "time_scale": 0.0}
        self.devices += make_drivers(parse_config({"devices": [entry]}))
        self.news.set()

    async def look(self) -> list[Driver]:
        found, self.devices = self.devices, []
        return found

    async def wait(self) -> None:
        await self.news.wait()
        self.news.clear()

    async def close(self) -> None:
        self.news.set()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
async def served(tmp_path: Path, shelf: Shelf) -> AsyncIterator[tuple[ServedTracker, Agent]]:
    async with serve_tracker() as tracker:
        config = parse_config({"devices": [{"driver": "simulated", "name": "first", "time_scale": 0.0}]})
        home = Home(tracker=tracker.address, state_dir=tmp_path / "agent")
        agent = Agent(config, make_drivers(config), home, finders=[shelf])
        async with agent:
            assert await agent.wait_attached(60.0)
            yield tracker, agent


def artifact(folder: Path) -> Artifact:
    path = folder / "lib.so"
    path.write_bytes(b"latency_us:40")
    return Artifact.of_file(path)


async def test_a_lease_goes_on_while_devices_come(
    served: tuple[ServedTracker, Agent], shelf: Shelf, tmp_path: Path
) -> None:
    """The tracker learns of the new device at once, and never treats the old ones as gone."""
    tracker, _ = served
    built = artifact(tmp_path)
    trial = Trial(candidate_id="c", artifact_digest=built.digest)
    attached = []
    async with fleet.aio.connect(tracker.address) as client, client.acquire("name=first") as device:
        await device.ensure([built])
        before = [result async for result in device.measure([trial])]
        shelf.put("second")
        while len(tracker.tracker.state.devices) < 2:
            attached.append(tracker.tracker.state.devices["devices/first"].is_attached)
            await asyncio.sleep(0.001)
        after = [result async for result in device.measure([trial])]
        async with client.acquire("name=second") as second:
            await second.ensure([built])
            there = [result async for result in second.measure([trial])]

    assert all(attached)
    assert not any(result.error for result in before + after + there)
    assert before[0].provenance["worker_pid"] == after[0].provenance["worker_pid"]


async def test_a_second_device_of_the_same_name_is_not_served(
    served: tuple[ServedTracker, Agent], shelf: Shelf
) -> None:
    """The first device keeps the name; the agent keeps looking for others."""
    _, agent = served

    shelf.put("first")
    shelf.put("third")
    await eventually(lambda: "devices/third" in agent.device_names)

    assert ["devices/first", "devices/third"] == agent.device_names


async def test_a_tracker_that_restarts_hears_of_all_devices(served: tuple[ServedTracker, Agent], shelf: Shelf) -> None:
    """Devices that came after the agent's start are in its new hello."""
    tracker, agent = served
    shelf.put("second")
    await eventually(lambda: len(agent.device_names) == 2)

    await tracker.restart()

    await eventually(lambda: [d.is_attached for d in tracker.tracker.state.devices.values()] == [True, True])


class TroubledShelf(Shelf):
    """The first look fails."""

    def __init__(self) -> None:
        super().__init__()
        self.trouble = [OSError("no file descriptors are left")]

    async def look(self) -> list[Driver]:
        if self.trouble:
            raise self.trouble.pop()
        return await super().look()


async def test_a_finder_that_fails_goes_on_looking() -> None:
    """If a scan or a device fails, the scan's other devices are served, and so are those of later scans."""
    served: list[str] = []
    shelf = TroubledShelf()

    async def take_in(driver: Driver) -> None:
        if driver.device_id == "broken":
            raise ValueError("nothing that anybody expected")
        served.append(driver.device_id)

    hotplug = Hotplug([shelf], take_in, retry_sec=0.0)
    hotplug.start()
    try:
        shelf.news.set()
        await eventually(lambda: not shelf.trouble)
        for name in ("broken", "one"):
            shelf.put(name)
        await eventually(lambda: served == ["one"])
        shelf.put("two")
        await eventually(lambda: served == ["one", "two"])
    finally:
        await hotplug.close()
