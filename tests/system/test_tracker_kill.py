"""The tracker as a process: killed, restarted, started twice, started wrongly."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import fleet.aio
from fleet.domain.health import HealthState
from fleet.testing import LeaseStream, SimulatedAgent, eventually
from fleet.wire.discovery import find_tracker

pytestmark = pytest.mark.slow


class TrackerProcess:
    """`python -m fleet.tracker` that can be killed and started again on its port."""

    def __init__(self, state_dir: Path, *flags: str) -> None:
        self._state_dir = state_dir
        self._flags = flags or ("--no-discovery",)
        self.address = "127.0.0.1:0"

    async def start(self) -> None:
        command = [sys.executable, "-m", "fleet.tracker", "--port", self.address.rpartition(":")[2]]
        self._process = await asyncio.create_subprocess_exec(
            *command, "--state-dir", str(self._state_dir), *self._flags, stdout=asyncio.subprocess.PIPE
        )
        assert self._process.stdout
        line = (await self._process.stdout.readline()).decode()
        assert line.startswith("tracker listening on 127.0.0.1:")
        self.address = line.split()[-1]

    async def stop(self, number: signal.Signals) -> int:
        if self._process.returncode is None:
            self._process.send_signal(number)
        return await self._process.wait()


@asynccontextmanager
async def tracker_process(state_dir: Path, *flags: str) -> AsyncIterator[TrackerProcess]:
    process = TrackerProcess(state_dir, *flags)
    await process.start()
    try:
        yield process
    finally:
        await process.stop(signal.SIGKILL)


def run_tracker(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleet.tracker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_killed_tracker_comes_back_with_leases_queue_and_larger_epochs(tmp_path: Path) -> None:
    """kill -9 amid traffic, five times: no device is ever granted twice at once and no epoch comes again."""
    rng = random.Random(7)
    granted: dict[str, list[int]] = {}
    async with tracker_process(tmp_path) as tracker:
        for _ in range(5):
            async with (
                SimulatedAgent(tracker.address, ["devices/a", "devices/b"]) as agent,
                LeaseStream(tracker.address, "holder") as holder,
                LeaseStream(tracker.address, "churn") as churn,
            ):
                # Leases that the tracker granted before it was killed are still held by the same client.
                assert holder.welcome
                held = {lease.device_name: lease for lease in holder.welcome.leases}
                if granted:
                    assert held["devices/a"].epoch == granted["devices/a"][-1]
                    assert agent.fences["devices/a"] < held["devices/a"].epoch
                else:
                    lease = (await holder.grant("hold", "name=a", ttl_sec=300.0)).lease
                    granted["devices/a"] = [lease.epoch]
                assert churn.welcome
                for stale in churn.welcome.leases:
                    churn.release(stale.name)
                for i in range(rng.randrange(5, 60)):
                    lease = (await churn.grant(f"r{i}", "name=b")).lease
                    assert lease.epoch > max(granted.setdefault("devices/b", [0]))
                    granted["devices/b"].append(lease.epoch)
                    churn.release(lease.name)
                await tracker.stop(signal.SIGKILL)
                await eventually(lambda: holder.error and churn.error and agent.error)
            await tracker.start()


async def test_an_owner_is_told_of_a_lost_booking_whenever_the_tracker_is_killed(tmp_path: Path) -> None:
    """Once more after the restart, and for the first time if the tracker died right after the board's retirement."""
    async with (
        tracker_process(tmp_path) as tracker,
        SimulatedAgent(tracker.address, ["devices/a", "devices/b"]),
        fleet.aio.connect(tracker.address) as client,
    ):
        seen: list[tuple[str, tuple[str, ...]]] = []
        client.watch_bookings(lambda booking: seen.append((booking.selector, booking.missing_device_names)))
        now_sec = (await client.snapshot()).taken_at_sec
        for name in ("a", "b"):
            await client.book(f"name={name}", now_sec + 3600.0, 3600.0)
        await client.set_health("name=a", HealthState.RETIRED, "broken")
        await eventually(lambda: seen)
        await client.set_health("name=b", HealthState.RETIRED, "broken")
        await tracker.stop(signal.SIGKILL)
        del seen[:]
        await tracker.start()
        await eventually(lambda: len(seen) >= 2)
        assert sorted(seen) == [("name=a", ("devices/a",)), ("name=b", ("devices/b",))]


async def test_waiting_request_survives_a_kill(tmp_path: Path) -> None:
    """A client that repeats its request after the restart keeps its place before a younger one."""
    async with tracker_process(tmp_path) as tracker:
        async with SimulatedAgent(tracker.address, ["devices/a"]), LeaseStream(tracker.address, "one") as one:
            held = (await one.grant("hold", "simulated", ttl_sec=300.0)).lease
            async with LeaseStream(tracker.address, "old") as old:
                old.acquire("wait", "simulated")
                await eventually(lambda: "wait" in old.queued)
                await tracker.stop(signal.SIGKILL)
        await tracker.start()
        async with (
            SimulatedAgent(tracker.address, ["devices/a"]),
            LeaseStream(tracker.address, "one") as one,
            LeaseStream(tracker.address, "young") as young,
            LeaseStream(tracker.address, "old") as old,
        ):
            young.acquire("wait", "simulated")
            await eventually(lambda: "wait" in young.queued)
            old.acquire("wait", "simulated")
            await eventually(lambda: "wait" in old.queued)

            one.release(held.name)

            await eventually(lambda: "wait" in old.granted)
            assert "wait" not in young.granted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_signals_end_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, also with open streams."""
    async with tracker_process(tmp_path) as tracker, SimulatedAgent(tracker.address, ["devices/a"]) as agent:
        assert await tracker.stop(number) == 0
        await eventually(lambda: agent.error)


async def test_second_tracker_on_the_same_state_is_refused(tmp_path: Path) -> None:
    """One line, exit code 2, no traceback."""
    async with tracker_process(tmp_path):
        refused = await asyncio.to_thread(run_tracker, "--port", "0", "--state-dir", str(tmp_path))

    assert refused.returncode == 2
    assert "another tracker (process " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """The error names the port and the remedy."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        refused = run_tracker("--port", str(port), "--state-dir", str(tmp_path), "--no-discovery")

    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1
    assert f"127.0.0.1:{port}" in refused.stderr


def test_open_address_needs_a_flag(tmp_path: Path) -> None:
    """Listening on an address that others can reach is refused with the reason, unless a flag allows it."""
    refused = run_tracker("--host", "0.0.0.0", "--port", "0", "--state-dir", str(tmp_path))

    assert refused.returncode == 2
    assert "--allow-network" in refused.stderr
    assert "--allow-network" in refused.stderr


async def test_tracker_on_this_machine_is_found(tmp_path: Path) -> None:
    """A loopback tracker is advertised on the loopback."""
    async with tracker_process(tmp_path, "--log-level", "WARNING") as tracker:

        async def is_found() -> bool:
            return await find_tracker() == tracker.address

        await eventually(is_found, 60.0)
