"""Races on the agent's stream to its tracker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from device_agents.drivers.simulated import SimulatedDriver
from device_agents.serving.admission import Admission
from device_agents.serving.attach import Hello, TrackerLink, open_stream
from device_agents.serving.device import ServedDevice
from device_agents.serving.membership import Membership
from device_agents.serving.sessions import SessionTable
from device_agents.serving.store import ArtifactStore
from device_agents.serving.timing import Timing
from device_agents.serving.tracker_clock import TrackerClock, boottime_sec
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.client.identity_calls import IdentityCalls
from fleet.domain.devices import Inventory
from fleet.errors import AlreadyExists, FleetError, NotAllowed
from fleet.identity.certificates import make_key
from fleet.testing import SimulatedAgent, eventually, serve_tracker
from fleet.tracker import agent_service
from fleet.tracker.core.records import Changes
from fleet.tracker.observers import Observer, Observers
from tests.service.agent_bench import admit

pytestmark = pytest.mark.slow


class Agent:
    """One device with a label that is as new as its hello."""

    def __init__(self, folder: Path) -> None:
        limits = WorkerLimits(memory_bytes=2**30, disk_bytes=2**30)
        self.pool = WorkerPool(folder / "workers", [], limits)
        (self.driver,) = SimulatedDriver.from_config({"name": "sim"}, where="test", host_name="here")
        self.fault = ""
        self.device = ServedDevice(self.driver, asyncio.Lock(), lambda: self.fault)
        self.label = "old"
        self.slept_sec = 0.0
        """Time for which its machine slept together with the tracker."""

        self.clock = TrackerClock(lambda: boottime_sec() + self.slept_sec)
        store = ArtifactStore(folder / "artifacts", 1000)
        self.table = SessionTable([self.device], Admission([self.device.name], self.clock), self.pool, store)

    def hello(self) -> Hello:
        inventory = Inventory(kind="simulated", labels={"age": self.label})
        return Hello(agent_id="agent", address=":1", inventories={self.device.name: inventory})


@asynccontextmanager
async def linked(
    folder: Path, address: str, opening: Callable[[Any], Any] = open_stream
) -> AsyncIterator[tuple[Agent, TrackerLink, asyncio.Task[None]]]:
    agent = Agent(folder)
    await agent.driver.open(agent.pool)
    timing = Timing(health_sec=0.01, heartbeat_sec=0.02)
    admit(folder)
    membership = Membership(folder, address)
    membership.load()
    link = TrackerLink(membership, agent.hello, [agent.device], agent.clock, agent.table, timing, open_stream=opening)
    running = asyncio.create_task(link.run())
    try:
        yield agent, link, running
    finally:
        while not running.done():
            running.cancel()
            await asyncio.wait((running,), timeout=1)
        await agent.driver.close()


async def test_a_device_is_never_well_under_its_former_description(
    tmp_path: Path,
) -> None:
    """A device that was missing and is here now is not reported on the old stream: only the new hello explains it."""
    seen: set[tuple[str, bool]] = set()
    opened = itertools.count()

    class SlowlyRenewed:
        """Passes everything on, but keeps the hello of every stream but the first back for a while."""

        def __init__(self, channel: Any) -> None:
            self._call = open_stream(channel)
            self._delay_sec = 0.2 if next(opened) else 0.0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._call, name)

        async def write(self, message: Any) -> None:
            if message.HasField("hello"):
                await asyncio.sleep(self._delay_sec)
            await self._call.write(message)

    async with serve_tracker() as tracker, linked(tmp_path, tracker.address, SlowlyRenewed) as (agent, link, _):
        devices = tracker.tracker.state.devices

        class Watcher(Observer):
            def on_change(self, _: Changes) -> None:
                seen.update((device.labels["age"], device.is_healthy) for device in devices.values())

        tracker.tracker.engine.observers = Observers((*tracker.tracker.engine.observers.members, Watcher()))
        agent.fault = "missing"
        await asyncio.wait_for(link.attached.wait(), 60)
        await eventually(lambda: seen == {("old", False)})
        agent.fault = ""
        agent.label = "new"
        link.attach_anew()

        await eventually(lambda: ("new", True) in seen)

    assert ("old", True) not in seen


async def test_a_machine_that_slept_asks_its_tracker_for_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays attached, and leases are good again with the tracker's next message."""
    monkeypatch.setattr(agent_service, "_HEARTBEAT_SEC", 0.05)
    async with serve_tracker() as served, linked(tmp_path, served.address) as (agent, link, _):
        await asyncio.wait_for(link.attached.wait(), 60)
        agent.slept_sec = 60.0
        tracker = served.tracker.engine.clock

        await eventually(lambda: abs((agent.clock.now_sec() or 0.0) - tracker.now_sec()) < 30)

        assert link.attached.is_set()


async def test_an_agent_dials_again_after_an_unexpected_dial_error(tmp_path: Path) -> None:
    """After an invalid address or an exhausted limit of open files, the agent once stopped dialling for ever."""
    dialled: list[Any] = []

    def opening(channel: Any) -> Any:
        dialled.append(channel)
        return open_stream(channel)

    async with linked(tmp_path, "tracker..lab:9290", opening):
        await eventually(lambda: len(dialled) > 1)


async def test_an_end_in_the_moment_of_the_first_answer_is_not_forgotten(
    tmp_path: Path,
) -> None:
    """Otherwise the agent would stay attached, and closing it would block for ever."""
    answers: list[Any] = []

    class Ending:
        """Passes everything on, and ends the link in the step in which the first answer is read."""

        def __init__(self, channel: Any) -> None:
            self._call = open_stream(channel)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._call, name)

        async def read(self) -> Any:
            answer = await self._call.read()
            if not answers:
                asyncio.get_running_loop().call_soon(running.cancel)
            answers.append(answer)
            return answer

    async with serve_tracker() as tracker, linked(tmp_path, tracker.address, Ending) as (_, _, running):
        await asyncio.wait((running,), timeout=60)
        ended = running.done()

    assert ended


@pytest.mark.parametrize(
    ("key_pem", "refusal"), [(make_key(), NotAllowed), (None, AlreadyExists)], ids=["its own key", "a copied key"]
)
async def test_a_name_conflict_is_reported_to_both_agents(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key_pem: bytes | None, refusal: type[FleetError]
) -> None:
    """The refused agent gets the remedy at each try, the running one and the tracker's log once."""

    def told(by: str) -> list[dict[str, object]]:
        return [record.__dict__ for record in caplog.records if record.name == by and hasattr(record, "address")]

    async with serve_tracker() as served, linked(tmp_path, served.address) as (_, link, _):
        await asyncio.wait_for(link.attached.wait(), 60)
        for _ in range(3):
            second = SimulatedAgent(
                served.address, ["devices/sim"], agent_id="other", address="elsewhere:4711", key_pem=key_pem
            )
            with pytest.raises(refusal, match=r"another 'name' in agent\.yaml"):
                await second.open()

        await eventually(lambda: told("device_agents.serving.attach"))
        assert link.attached.is_set()
        async with IdentityCalls(served.address) as admin:
            entries = [entry for entry in await admin.audit_entries(100) if entry.outcome == refusal.__name__]

    (by_agent,) = told("device_agents.serving.attach")
    (by_tracker,) = told("fleet.tracker.agent_service")
    assert (by_agent["device"], by_agent["address"]) == ("devices/sim", "127.0.0.1:4711")
    assert "remedy" in by_agent
    assert (by_tracker["device"], by_tracker["address"]) == ("devices/sim", "127.0.0.1:4711")
    assert by_agent["key"] == by_tracker["key"] != ""
    assert [entry.action for entry in entries] == ["AgentService.Attach"] * 3


async def test_an_agent_dials_the_tracker_that_answers(tmp_path: Path) -> None:
    """It finds its tracker at the second address, and at the first one after a move."""
    state = tmp_path / "state"
    async with serve_tracker(state_dir=state) as first:
        unused = first.address
    async with (
        serve_tracker(state_dir=state) as second,
        linked(tmp_path, f"{unused},{second.address}") as (_, link, _),
    ):
        await asyncio.wait_for(link.attached.wait(), 60)
        await second.stop()
        await eventually(lambda: not link.attached.is_set())
        await first.start()
        try:
            await asyncio.wait_for(link.attached.wait(), 60)
        finally:
            await first.stop()
