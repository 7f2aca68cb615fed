"""A worker that no signal ends costs its device, not the agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from device_agents import pool, worker_handle
from device_agents.config import make_drivers, parse_config
from device_agents.output import OutputPipe
from device_agents.pool import WorkerPool
from device_agents.served import ServedDevice
from device_agents.watchdog import Limits
from device_agents.worker_handle import Exit, WorkerHandle
from device_agents.worker_link import WorkerLink


class NoSweeper:
    async def sweep(self) -> None:
        """Nothing to sweep."""


async def nothing_ends_it() -> None:
    """As a process in uninterruptible sleep takes SIGKILL."""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.timeout(20)
async def test_a_pool_ends_without_it(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the agent's end nor a new warm process waits for what does not end: here for one that nobody kills."""
    monkeypatch.setattr(pool, "_REAP_SEC", 0.1)
    workers = WorkerPool(tmp_path / "workers", [], Limits(memory_bytes=1, disk_bytes=1))
    workers._pids[1] = sleeper.pid

    await asyncio.wait_for(workers.close(), 5)

    assert sleeper.poll() is None


async def test_killing_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is faulted as long as the process is there, says which it is, and is well when it has ended."""
    monkeypatch.setattr(worker_handle, "_KILL_SEC", 0.05)
    reader, writer = os.pipe()
    exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    worker = WorkerHandle(
        pid=4711,
        directory=str(tmp_path / "worker"),
        limits=Limits(memory_bytes=1, disk_bytes=1),
        output=OutputPipe(reader, lambda _: None),
        exited=exited,
        ask_to_kill=nothing_ends_it,
        link=cast("WorkerLink", WorkerLink()),
    )
    (driver,) = make_drivers(parse_config({"devices": [{"driver": "simulated"}]}))
    await driver.open(NoSweeper())
    device = ServedDevice(driver, asyncio.Lock())

    await asyncio.wait_for(worker.kill(), 5)
    device.killed = worker
    health = await device.health()

    assert not health.is_healthy
    assert "worker 4711 cannot be killed" in health.reason
    exited.set_result(Exit(signal=9))
    assert (await device.health()).is_healthy
    os.close(writer)
    await driver.close()
