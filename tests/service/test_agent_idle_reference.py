"""An idle device is measured with the reference kernel, and a lease does not wait for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.driver import WorkerSpec
from device_agents.drivers.simulated import SimulatedDriver
from device_agents.runtimes.simulated import SimulatedRuntime
from device_agents.serving.timing import Timing
from fleet.domain.devices import Inventory
from fleet.testing import eventually
from tests.service.agent_bench import DEVICE, Bench, serve_bench

pytestmark = pytest.mark.slow
TIMING = Timing(health_sec=0.05, heartbeat_sec=0.1, reference_series_sec=(0.1, 1e6))
LIMIT_SEC = 8.0
"""Less than the time limit of a reference kernel, which is 10 s."""


class MeasuredRuntime(SimulatedRuntime):
    """Has a reference kernel, unlike other simulated devices."""

    def reference(self) -> list[float]:
        return [0.125, 0.125]


class HangingRuntime(SimulatedRuntime):
    """Has a reference kernel that hangs."""

    def reference(self) -> list[float]:
        time.sleep(60.0)
        return []


class BoardDriver(SimulatedDriver):
    """Passes for a real board."""

    reference_runtime = MeasuredRuntime

    def inventory(self) -> Inventory:
        return replace(super().inventory(), is_simulated=False)

    def _reference_spec(self) -> WorkerSpec:
        runtime = self.reference_runtime
        return replace(self._worker_spec(), runtime=f"{runtime.__module__}:{runtime.__name__}")


class HangingDriver(BoardDriver):
    """Its reference kernel hangs."""

    reference_runtime = HangingRuntime


def board(driver: type[SimulatedDriver] = BoardDriver, **settings: object) -> list[SimulatedDriver]:
    return driver.from_config({"name": "sim", "time_scale": 0.0, **settings}, where="test", host_name="here")  # type: ignore[return-value]


def reading(bench: Bench) -> float:
    """Return the latest reported time of the reference kernel [s], or 0."""
    report = bench.tracker.reports.get(DEVICE)
    return report.telemetry.reference_sec if report is not None else 0.0


async def test_an_idle_device_is_measured_when_its_agent_attaches(tmp_path: Path) -> None:
    """Its worker ends afterwards."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board()) as bench:
        await eventually(lambda: reading(bench) == 0.125)

        await eventually(lambda: bench.agent.worker_pids == [])


async def test_a_simulated_device_is_not_measured(tmp_path: Path) -> None:
    """Its times are made up."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board(SimulatedDriver)) as bench:
        assert not bench.agent._idle[DEVICE]._watching  # noqa: SLF001


async def test_a_device_is_measured_after_a_fault(tmp_path: Path) -> None:
    """The end of the lease under which it faulted starts a series, too."""
    timing = replace(TIMING, reference_series_sec=(0.3, 1e6))
    drivers = board(disconnect_after=1, reconnect_sec=0.5)
    async with serve_bench(tmp_path, timing=timing, drivers=drivers) as bench:
        device = bench.agent._devices[0]  # noqa: SLF001
        await eventually(lambda: reading(bench) == 0.125)
        holder = bench.holding(1)
        await holder.run(b"")
        await eventually(lambda: not bench.tracker.reports[DEVICE].is_healthy)
        device.reference.latest_sec = None
        await holder.close_session()

        await eventually(lambda: bench.tracker.reports[DEVICE].is_healthy and device.reference.latest_sec == 0.125)


async def test_a_lease_ends_a_reference_kernel_in_progress(tmp_path: Path) -> None:
    """One that hangs, too; the lease's own worker takes its place."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board(HangingDriver)) as bench:
        await eventually(lambda: bench.agent.worker_pids)
        (hanging,) = bench.agent.worker_pids
        holder = bench.holding(1)

        async with asyncio.timeout(LIMIT_SEC):
            assert await holder.open() not in (0, hanging)

        assert hanging not in bench.agent.worker_pids


async def test_an_agent_ends_with_a_reference_kernel_in_progress(tmp_path: Path) -> None:
    """The bench finds no process afterwards."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board(HangingDriver)) as bench:
        await eventually(lambda: bench.agent.worker_pids)
