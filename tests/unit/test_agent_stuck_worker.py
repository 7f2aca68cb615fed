"""A worker that no signal ends costs its device, not the agent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from device_agents.config import make_drivers, parse_config
from device_agents.driver import WorkerSpec
from device_agents.machine import linux
from device_agents.serving.device import ServedDevice
from device_agents.workers.handle import Patience
from device_agents.workers.limits import WorkerLimits
from device_agents.workers.pool import WorkerPool
from fleet.testing import eventually

SPEC = WorkerSpec(runtime="device_agents.runtimes.simulated:SimulatedRuntime")


class DeafToKills:
    """Simulates a kernel that does not end a process: SIGKILL has no effect until `hears` is set."""

    hears = False

    def __call__(self, pid: int) -> None:
        if self.hears:
            linux.kill(pid)


@pytest.fixture
def deaf() -> DeafToKills:
    return DeafToKills()


@pytest.fixture
async def pool(tmp_path: Path, deaf: DeafToKills) -> AsyncIterator[WorkerPool]:
    limits = WorkerLimits(memory_bytes=2**30, disk_bytes=2**30)
    workers = WorkerPool(
        tmp_path / "workers",
        [],
        limits,
        patience=Patience(reported_sec=0.02, given_up_sec=0.05, at_end_sec=0.1),
        kill=deaf,
    )
    await workers.open()
    yield workers
    deaf.hears = True
    await workers.close()


@pytest.mark.slow
async def test_a_pool_ends_without_it(pool: WorkerPool) -> None:
    """A closing agent does not wait for a stopped worker; the keeper ends the worker once its socket is closed."""
    worker = await pool.start_worker(SPEC, lambda _: None)
    assert pool.worker_pids == [worker.pid]
    os.kill(worker.pid, signal.SIGSTOP)  # or it would end by itself with its socket

    await asyncio.wait_for(pool.close(), 30)

    await eventually(lambda: not linux.is_running(worker.pid))


@pytest.mark.slow
async def test_a_program_whose_worker_cannot_be_killed_is_poison(pool: WorkerPool, deaf: DeafToKills) -> None:
    """It is blamed at once, so that the next program is not."""
    worker = await pool.start_worker(SPEC, lambda _: None)
    os.kill(worker.pid, signal.SIGSTOP)
    (driver,) = make_drivers(parse_config({"devices": [{"driver": "simulated"}]}))
    await driver.open(pool)
    device = ServedDevice(driver, asyncio.Lock())

    async with device.running("sha256:1", worker):
        await asyncio.wait_for(worker.kill(), 30)
    async with device.running("sha256:2", worker):
        pass

    assert device.poison.unsent() == {"sha256:1": device.name}
    os.kill(worker.pid, signal.SIGKILL)
    await eventually(lambda: not worker.is_stuck)
    await driver.close()


@pytest.mark.slow
async def test_killing_does_not_wait_for_ever(pool: WorkerPool, deaf: DeafToKills) -> None:
    """The device is faulted while the process exists, names it and its state, and heals."""
    worker = await pool.start_worker(SPEC, lambda _: None)
    os.kill(worker.pid, signal.SIGSTOP)
    (driver,) = make_drivers(parse_config({"devices": [{"driver": "simulated"}]}))
    await driver.open(pool)
    device = ServedDevice(driver, asyncio.Lock())

    await asyncio.wait_for(worker.kill(), 30)
    device.note_killed(worker)
    health = await device.health()

    assert not health.is_healthy
    assert f"worker {worker.pid} cannot be killed" in health.reason
    assert "state T" in health.reason
    os.kill(worker.pid, signal.SIGKILL)
    await eventually(lambda: not worker.is_stuck)
    assert (await device.health()).is_healthy
    await driver.close()
