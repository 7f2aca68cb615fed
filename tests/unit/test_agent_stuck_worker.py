"""A worker that no signal ends costs its device, not the agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import WorkerSpec
from device_agents.serving.device import ServedDevice
from device_agents.workers.handle import Exit, WorkerHandle
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.link import WorkerLink
from device_agents.workers.output import OutputPipe
from device_agents.workers.pool import WorkerPool

SAYS_IT_FORKED = """
import json, os, socket, sys

agent = socket.socket(fileno=int(sys.argv[sys.argv.index("--socket") + 1]))
agent.send(json.dumps({"event": "ready"}).encode())
while packet := agent.recv(65536):
    worker_id = json.loads(packet)["order"]["worker_id"]
    agent.send(json.dumps({"event": "forked", "worker_id": worker_id, "pid": int(os.environ["SLEEPER"])}).encode())
"""
"""A warm process that forks nothing and names a process that it will not kill."""


class NoSweeper:
    async def sweep(self) -> None:
        """Nothing to sweep."""


async def nothing_ends_it() -> None:
    """Do nothing, as SIGKILL does to a process in uninterruptible sleep."""


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
    (tmp_path / "says_it_forked.py").write_text(SAYS_IT_FORKED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SLEEPER", str(sleeper.pid))
    limits = WorkerLimits(memory_bytes=1, disk_bytes=1)
    workers = WorkerPool(tmp_path / "workers", [], limits, reap_sec=0.1, warm_module="says_it_forked")
    await workers.open()
    worker = await workers.start_worker(WorkerSpec(runtime="any"), lambda _: None)
    assert (worker.pid, workers.worker_pids) == (sleeper.pid, [sleeper.pid])

    await asyncio.wait_for(workers.close(), 5)

    assert sleeper.poll() is None


async def test_killing_does_not_wait_for_ever(tmp_path: Path) -> None:
    """The device is faulted as long as the process is there, says which it is, and is well when it has ended."""
    reader, writer = os.pipe()
    exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
    worker = WorkerHandle(
        pid=4711,
        directory=str(tmp_path / "worker"),
        limits=WorkerLimits(memory_bytes=1, disk_bytes=1),
        output=OutputPipe(reader, lambda _: None),
        exited=exited,
        ask_to_kill=nothing_ends_it,
        link=WorkerLink(),
        kill_sec=0.05,
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
