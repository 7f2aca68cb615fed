"""Faults by hooks: of their own device alone, for a while, and what follows from them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

import fleet.aio
from device_agents.agent import Agent, Home
from device_agents.config import make_drivers, parse_config
from device_agents.serving.timing import Timing
from device_agents.serving.upkeep import MAX_CYCLES
from fleet.domain.health import HealthState
from fleet.errors import DeviceFaulted
from fleet.testing import eventually, serve_tracker
from tests.service.agent_bench import DEVICE, StubTracker, serve_bench
from tests.service.test_agent_hooks import holder_of, script, yaml_with
from tests.service.test_agent_process import running
from tests.service.test_poison import program

pytestmark = pytest.mark.slow
QUICK = Timing(health_sec=0.05, heartbeat_sec=0.1, hook_fault_sec=0.3, settle_sec=0.05)


@pytest.fixture
async def tracker() -> AsyncIterator[StubTracker]:
    stub = StubTracker()
    await stub.start()
    yield stub
    await stub.stop()


def device(name: str, **settings: object) -> dict[str, object]:
    return {"driver": "simulated", "name": name, "time_scale": 0.0, **settings}


def failing(folder: Path, text: str) -> Mapping[str, object]:
    return {"command": [script(folder, "fail", f"echo {text}; exit 1")]}


async def test_a_hook_runs_as_its_agent_does(tmp_path: Path, tracker: StubTracker) -> None:
    """Outside of any jail: with the agent's user, namespaces and cgroup, and in the root directory."""
    log = tmp_path / "log"
    names = "mnt pid net user ipc uts cgroup"
    before = script(
        tmp_path,
        "before",
        f"(id -u; pwd; for name in {names}; do readlink /proc/self/ns/$name; done; cat /proc/self/cgroup) > {log}",
    )
    with running(tmp_path / "agent", tracker.address, yaml=yaml_with({"before_lease": {"command": [before]}})) as agent:
        holder = await holder_of(agent, tracker, 1)
        await holder.open()
        process = Path(f"/proc/{agent.process.pid}")

        uid, folder, *rest = log.read_text().splitlines()

        assert (uid, folder) == (str(os.geteuid()), "/")
        spaces = [str((process / "ns" / name).readlink()) for name in names.split()]
        assert rest == [*spaces, *(process / "cgroup").read_text().splitlines()]
        await holder.close()


async def test_a_failed_hook_after_a_lease_faults_the_device(tmp_path: Path) -> None:
    """The next lease cannot begin; the reason is the last line."""
    config = {"devices": [device("sim", after_lease=failing(tmp_path, "the board is dirty"))]}
    async with serve_bench(tmp_path / "agent", config) as bench:
        holder = bench.holding(1)
        await holder.open()
        await holder.close_session()
        await eventually(lambda: not bench.tracker.reports[DEVICE].is_healthy)

        with pytest.raises(DeviceFaulted, match="after_lease: the board is dirty"):
            await bench.holding(2).open()


async def test_a_failed_power_cycle_is_the_reason_of_the_fault(tmp_path: Path) -> None:
    """Once the board works again, as nobody knows in which state the switch is."""
    settings = {"disconnect_after": 1, "reconnect_sec": 0.5, "power_cycle": failing(tmp_path, "no answer of the relay")}
    timing = Timing(health_sec=0.05, heartbeat_sec=0.1)
    async with serve_bench(tmp_path / "agent", {"devices": [device("sim", **settings)]}, timing=timing) as bench:
        await bench.holding(1).run(b"")

        await eventually(lambda: bench.tracker.reports[DEVICE].reason == "power_cycle: no answer of the relay")


async def test_a_failed_hook_faults_its_own_device_alone(tmp_path: Path) -> None:
    """Another device of the agent goes on."""
    config = {"devices": [device("sim", before_lease={"command": ["false"]}), device("other")]}
    async with serve_bench(tmp_path / "agent", config) as bench:
        with pytest.raises(DeviceFaulted):
            await bench.holding(1).open()

        assert await bench.holding(2, device="devices/other").open() > 0

        await eventually(lambda: not bench.tracker.reports[DEVICE].is_healthy)
        assert bench.tracker.reports["devices/other"].is_healthy


async def test_a_device_is_not_power_cycled_if_that_cannot_be_noted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise it could happen more than three times a day. Once it can, it is, however often it was tried."""
    log = tmp_path / "log"
    cycle = {"command": [script(tmp_path, "cycle", f"echo cycled >> {log}")]}
    settings = {"disconnect_after": 1, "reconnect_sec": 3600.0, "power_cycle": cycle}
    notes = tmp_path / "agent/private/hooks.json"
    notes.mkdir(parents=True)
    async with serve_bench(tmp_path / "agent", {"devices": [device("sim", **settings)]}, timing=QUICK) as bench:
        await bench.holding(1).run(b"")
        await eventually(lambda: caplog.text.count("cannot write the notes of hooks") > MAX_CYCLES)
        assert not log.exists()

        notes.rmdir()
        await eventually(log.exists)


async def test_a_device_recovers_from_a_failed_hook(tmp_path: Path) -> None:
    """After ten minutes (less in this test), the next lease tries again; a success is a recovery like any other."""
    mended = tmp_path / "mended"
    config = {"devices": [device("sim", before_lease={"command": ["test", "-e", str(mended)]})]}
    async with serve_bench(tmp_path / "agent", config, timing=QUICK) as bench:
        served = bench.agent._roster.devices[0]  # noqa: SLF001
        with pytest.raises(DeviceFaulted):
            await bench.holding(1).open()
        assert served.recoveries == 0
        mended.touch()
        await eventually(lambda: served.recoveries == 1 and bench.tracker.reports[DEVICE].is_healthy)

        assert await bench.holding(2).open() > 0


async def test_three_leases_with_a_failed_hook_quarantine_a_board(tmp_path: Path) -> None:
    """The mark names the last line of the hook."""
    config = parse_config({"devices": [device("sim", before_lease=failing(tmp_path, "no SD card"))]})
    async with serve_tracker() as tracker, fleet.aio.connect(tracker.address) as client:
        home = Home(tracker=tracker.address, state_dir=tmp_path / "agent")
        async with Agent(config, make_drivers(config), home, timing=QUICK) as agent:
            assert await agent.wait_attached(60.0)
            board = tracker.tracker.state.devices[DEVICE]
            for _ in range(3):
                await eventually(lambda: board.is_healthy)
                with pytest.raises(DeviceFaulted, match="no SD card"):
                    async with client.acquire("name=sim") as leased:
                        await leased.ensure([program(tmp_path, b"good")])
                await eventually(lambda: not board.is_healthy or board.mark.state is HealthState.QUARANTINED)

            await eventually(lambda: board.mark.state is HealthState.QUARANTINED)
            assert "no SD card" in board.mark.reason
