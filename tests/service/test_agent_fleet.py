"""The agent with the real tracker and the real client: the whole path, on simulated devices."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.drivers.simulated import SimulatedDriver
from fleet.artifacts.artifact import Artifact
from fleet.client import upload
from fleet.domain.devices import Inventory, RuntimeKind
from fleet.domain.measuring import ErrorKind, Measurement, Trial
from fleet.errors import ArtifactRefused, LeaseRevoked
from fleet.testing import ServedTracker, eventually, serve_tracker
from fleet.tracker.options import TrackerOptions
from fleet.tracker.server import Tracker
from tests.programs import is_alive

pytestmark = pytest.mark.slow
CONFIG = {"devices": [{"driver": "simulated", "name": "sim", "time_scale": 0.0}]}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ServedTracker, Agent]]:
    async with serve_tracker() as tracker:
        config = parse_config(CONFIG)
        agent = Agent(config, make_drivers(config), Home(tracker=tracker.address, state_dir=tmp_path / "agent"))
        async with agent:
            assert await agent.wait_attached(60.0)
            yield tracker, agent


def artifact(folder: Path, content: bytes) -> Artifact:
    path = folder / f"{len(list(folder.iterdir()))}.so"
    path.write_bytes(content)
    return Artifact.of_file(path)


async def collect(measurements: AsyncIterator[Measurement]) -> list[Measurement]:
    return [measurement async for measurement in measurements]


def trial(built: Artifact) -> Trial:
    return Trial(candidate_id=built.path.name, artifact_digest=built.digest)


@pytest.mark.skipif(not socket.has_ipv6, reason="IPv6")
async def test_tracker_and_agent_are_reached_over_ipv6(tmp_path: Path) -> None:
    """Tracker and agent give their addresses in the form that clients need for IPv6."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no loopback of IPv6")
    config = parse_config(CONFIG)
    async with Tracker(
        TrackerOptions(host="::1", port=0, state_dir=tmp_path / "tracker", is_discoverable=False)
    ) as one:
        home = Home(tracker=one.address, state_dir=tmp_path / "agent", host="::1")
        async with Agent(config, make_drivers(config), home) as agent, fleet.aio.connect(one.address) as client:
            assert await agent.wait_attached(60.0)
            async with client.acquire("name=sim") as device:
                built = artifact(tmp_path, b"latency_us:40")
                await device.ensure([built])
                (result,) = await collect(device.measure([trial(built)]))

    assert result.error is None
    assert [one.address.rpartition(":")[0], device.address.rpartition(":")[0]] == ["[::1]", "[::1]"]


class PlainDriver(SimulatedDriver):
    """A board without TVM's runtime."""

    def _inventory(self) -> Inventory:
        return replace(super()._inventory(), runtime=RuntimeKind.PLAIN)


async def test_a_client_learns_that_a_board_runs_plain_functions_only(tmp_path: Path) -> None:
    """The runtime is a field of the inventory, from the driver to the client, not a label."""
    drivers = PlainDriver.from_config({"name": "board"}, where="test", host_name="here")
    async with serve_tracker() as tracker:
        home = Home(tracker=tracker.address, state_dir=tmp_path / "agent")
        async with Agent(parse_config({}), drivers, home, finders=[]) as agent:
            assert await agent.wait_attached(60.0)
            async with fleet.aio.connect(tracker.address) as client, client.acquire("simulated") as device:
                assert device.inventory.runtime is RuntimeKind.PLAIN


async def test_a_client_measures_through_tracker_and_agent(served: tuple[ServedTracker, Agent], tmp_path: Path) -> None:
    """Times come back in order, with a crash among them."""
    built = [artifact(tmp_path, content) for content in (b"latency_us:40", b"crash", b"latency_us:60")]

    async with fleet.aio.connect(served[0].address) as client, client.acquire("simulated") as device:
        await device.ensure(built)
        results = await collect(device.measure(map(trial, built)))

    assert [result.error for result in results] == [None, ErrorKind.CRASHED, None]
    assert [result.candidate_id for result in results] == [item.path.name for item in built]
    assert results[0].median_sec < results[2].median_sec


async def test_uploads_over_a_network_are_complete(
    served: tuple[ServedTracker, Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads are compressed and start before the missing artifacts are known; new, known and large ones can be
    measured.
    """
    monkeypatch.setattr(upload, "is_far", lambda _: True)
    padding = os.urandom(100_000)
    built = [artifact(tmp_path, b"latency_us:%d\n" % number + padding) for number in range(1, 7)]
    large = artifact(tmp_path, b"latency_us:9\n" + bytes(3_000_000))

    async with fleet.aio.connect(served[0].address) as client:
        for order in (built[3:5], [*built, large], [large], built):
            async with client.acquire("simulated") as device:
                await device.ensure(order)
                results = await collect(device.measure(map(trial, order)))
            assert [result.error for result in results] == [None] * len(order), results


async def test_a_failed_upload_over_a_network_reports_its_error(
    served: tuple[ServedTracker, Agent], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed file, sent ahead or later, and a missing file fail with their errors; the next upload works."""
    monkeypatch.setattr(upload, "is_far", lambda _: True)
    built = [artifact(tmp_path, b"latency_us:%d\n" % number + os.urandom(100_000)) for number in range(1, 7)]

    async with fleet.aio.connect(served[0].address) as client, client.acquire("simulated") as device:
        for changed in (built[0], built[5]):
            content = changed.path.read_bytes()
            changed.path.write_bytes(content[::-1])
            with pytest.raises(ArtifactRefused, match="announced as"):
                await device.ensure(built)
            changed.path.write_bytes(content)
        built[5].path.rename(tmp_path / "away")
        with pytest.raises(ArtifactRefused, match="cannot read"):
            await device.ensure(built)

        await device.ensure(built[:5])
        results = await collect(device.measure(map(trial, built[:5])))

    assert [result.error for result in results] == [None] * 5


async def test_a_revoked_lease_stops_its_measurement(served: tuple[ServedTracker, Agent], tmp_path: Path) -> None:
    """The worker is dead, the next holder gets the device, and the former one the reason."""
    tracker, agent = served
    hanging, fine = artifact(tmp_path, b"sleep:60"), artifact(tmp_path, b"latency_us:50")
    async with fleet.aio.connect(tracker.address) as client, fleet.aio.connect(tracker.address) as operator:
        async with client.acquire("simulated") as device:
            await device.ensure([hanging])
            measuring = asyncio.create_task(collect(device.measure([trial(hanging)])))
            await eventually(lambda: agent.worker_pids)
            worker = agent.worker_pids[0]

            await operator.revoke(device.lease.name, "maintenance")

            with pytest.raises(LeaseRevoked):
                await measuring
        await eventually(lambda: not is_alive(worker))
        async with operator.acquire("simulated") as device:
            await device.ensure([fine])
            results = await collect(device.measure([trial(fine)]))
        assert results[0].error is None
