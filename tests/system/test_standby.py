"""A standby tracker as a process: it follows, is promoted, and the former tracker follows it."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

import fleet.aio
from fleet.client.aio import Fleet
from fleet.testing import eventually
from fleet.tracker.journal.copy import reader
from tests.system.fleet_processes import Server, run_fleet

pytestmark = pytest.mark.slow

AGENT = """
jail: none
devices:
  - driver: simulated
    name: {name}
    count: 2
"""


class Pair:
    """A tracker, its standby, and agents that know only the tracker."""

    def __init__(self, folder: Path, agents: int, *, joins_by_token: bool) -> None:
        self.folder = folder
        self.joins_by_token = joins_by_token
        self.first = self._tracker("first")
        self.second: Server
        self.agents = [self.folder / f"sim{number or ''}" for number in range(agents)]
        self._started: list[Server] = []

    def start(self) -> None:
        self._started.append(self.first.start())
        if self.joins_by_token:
            self._join()
        self.second = self._tracker("second", "--standby-of", self.first.address)
        self.second.ready = "standby"
        self._started.append(self.second.start())
        for agent in self.agents:
            config = agent.with_suffix(".yaml")
            config.write_text(AGENT.format(name=agent.name))
            words = ["-m", "device_agents", "--tracker", self.first.address, "--config", str(config)]
            words += ["--state-dir", str(agent)]
            self._started.append(Server(words, "agent", agent.with_suffix(".log")).start())

    def stop(self) -> None:
        for server in reversed(self._started):
            server.stop()

    def _join(self) -> None:
        there = ("--tracker", self.first.address)
        made = run_fleet("tracker", "token", "create", "--role", "standby", *there)
        token = self.folder / "token"
        token.touch(0o600)
        token.write_text(made.stdout)
        words = ("--token-file", str(token), "--state-dir", str(self.folder / "second"))
        joined = run_fleet("tracker", "join", *there, *words)
        assert "as standby" in joined.stderr, (made.stderr, joined.stderr)

    def standing(self, name: str) -> dict[str, object]:
        found: dict[str, object] = json.loads((self.folder / name / "standing.json").read_text())
        return found

    def are_equal(self) -> bool:
        """Tell whether the standby has every row; not while it replaces its journal."""
        try:
            return self._rows("first") == self._rows("second")
        except sqlite3.Error:
            return False

    def _rows(self, name: str) -> list[tuple[object, ...]]:
        with closing(reader(self.folder / name / "journal.sqlite")) as connection:
            chain = connection.execute("SELECT * FROM chain").fetchall()
            return chain + connection.execute("SELECT * FROM entries ORDER BY key").fetchall()

    def promote(self) -> None:
        done = run_fleet("tracker", "promote", "--tracker", self.second.address)
        assert done.returncode == 0, done.stderr

    def _tracker(self, name: str, *words: str) -> Server:
        command = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(self.folder / name), *words]
        return Server(command, "tracker", self.folder / f"{name}.log")


@asynccontextmanager
async def pair(folder: Path, agents: int = 1, *, joins_by_token: bool = False) -> AsyncIterator[Pair]:
    found = Pair(folder, agents, joins_by_token=joins_by_token)
    try:
        await asyncio.to_thread(found.start)
        yield found
    finally:
        await asyncio.to_thread(found.stop)


def has_line(log: Path, words: str) -> bool:
    return words in log.read_text()


async def connected(address: str) -> Fleet:
    return await fleet.aio.connect(address, connect_timeout_sec=60)


async def free_devices(client: Fleet) -> int:
    return sum(1 for device in (await client.snapshot()).devices if device.state == "available")


async def test_a_lease_survives_its_trackers_death(tmp_path: Path) -> None:
    """After kill -9 and a promotion the lease goes on, others are granted, and the former tracker follows."""
    async with pair(tmp_path) as trackers, await connected(trackers.first.address) as client:
        held = await client.acquire_device("name=sim-0")
        await eventually(trackers.are_equal)

        trackers.first.kill()
        await asyncio.to_thread(trackers.promote)

        await eventually(lambda: client.is_connected, 60.0)
        snapshot = await client.snapshot()
        assert {device.name: device.lease_name for device in snapshot.devices}["devices/sim-0"] == held.lease.name
        other = await client.acquire_device("name=sim-1", wait_timeout_sec=60.0)
        assert other.lease.epoch > held.lease.epoch
        assert held.ended is None

        trackers.first.ready = "standby"
        await asyncio.to_thread(trackers.first.start)
        assert trackers.standing("first")["duty"] == "follows"


async def test_a_standby_takes_over_from_a_frozen_tracker(tmp_path: Path) -> None:
    """Agents and clients leave it for the standby. Once it wakes up, no agent obeys it, and it follows."""
    async with pair(tmp_path, agents=3) as trackers, await connected(trackers.first.address) as client:
        held = await client.acquire_device("name=sim-0")
        await eventually(trackers.are_equal)
        trackers.first.process.send_signal(signal.SIGSTOP)
        try:
            await eventually(lambda: trackers.standing("second")["duty"] == "grants", 60.0)
            for agent in trackers.agents:
                await eventually(partial(has_line, agent.with_suffix(".log"), "another one has taken over"), 60.0)
            async with await connected(trackers.second.address) as other:
                await eventually(lambda: other.is_connected, 60.0)
                taken = await other.acquire_device("name=sim-1", wait_timeout_sec=60.0)
                trackers.first.process.send_signal(signal.SIGCONT)
                await eventually(lambda: trackers.standing("first").get("duty") == "follows", 60.0)
                await eventually(trackers.are_equal, 60.0)
                leases = {device.name: device.lease_name for device in (await other.snapshot()).devices}
                assert {name: lease for name, lease in leases.items() if lease} == {
                    "devices/sim-0": held.lease.name,
                    "devices/sim-1": taken.lease.name,
                }
                await eventually(lambda: client.is_connected, 60.0)
                assert held.ended is None
                assert taken.ended is None
        finally:
            trackers.first.process.send_signal(signal.SIGCONT)


async def test_a_takeover_while_both_run_and_back(tmp_path: Path) -> None:
    """The former tracker follows at once; it takes over in its turn, as for two upgrades one after the other."""
    async with (
        pair(tmp_path, joins_by_token=True) as trackers,
        await connected(trackers.first.address) as client,
    ):
        held = await client.acquire_device("name=sim-0")
        await eventually(trackers.are_equal)
        await asyncio.to_thread(trackers.promote)
        await eventually(lambda: trackers.standing("first").get("duty") == "follows", 60.0)
        await eventually(trackers.are_equal, 60.0)

        back = await asyncio.to_thread(run_fleet, "tracker", "promote", "--tracker", trackers.first.address)
        assert back.returncode == 0, back.stderr
        await eventually(lambda: trackers.standing("second").get("duty") == "follows", 60.0)
        other = await client.acquire_device("name=sim-1", wait_timeout_sec=60.0)
        assert other.lease.epoch > held.lease.epoch
        assert held.ended is None
