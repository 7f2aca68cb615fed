"""An idle device is measured with the reference kernel, and a lease does not wait for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from device_agents.agent import Agent, Home
from device_agents.config import parse_config
from device_agents.driver import WorkerSpec
from device_agents.drivers.simulated import SimulatedDriver
from device_agents.hooks import Hook, Hooks
from device_agents.runtimes.simulated import SimulatedRuntime
from device_agents.serving.timing import Timing
from fleet.domain.devices import Inventory
from fleet.domain.health import HealthState
from fleet.errors import DeviceFaulted
from fleet.testing import FakeClock, eventually, serve_tracker
from tests.service.agent_bench import DEVICE, Bench, serve_bench

pytestmark = pytest.mark.slow
TIMING = Timing(health_sec=0.05, heartbeat_sec=0.1, reference_series_sec=(0.1, 1e6))
LIMIT_SEC = 8.0
"""Less than the time limit of a reference kernel, which is 10 s."""


class MeasuredRuntime(SimulatedRuntime):
    """Has a reference kernel, unlike other simulated devices."""

    def reference(self) -> list[float]:
        return [0.125, 0.125]


class SlowRuntime(MeasuredRuntime):
    """Has a slower reference kernel than other boards."""

    def reference(self) -> list[float]:
        return [0.25, 0.25]


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


class SlowDriver(BoardDriver):
    """Its reference kernel takes twice as long."""

    reference_runtime = SlowRuntime


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


async def test_an_idle_device_is_measured_again_when_its_tracker_is_back(tmp_path: Path) -> None:
    """A new tracker has no reference times yet."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board()) as bench:
        device = bench.agent._roster.devices[0]  # noqa: SLF001
        await eventually(lambda: reading(bench) == 0.125)
        device.reference.latest_sec = None
        await bench.tracker.stop()
        bench.tracker.reports.clear()
        await bench.tracker.start()

        await eventually(lambda: reading(bench) == 0.125, timeout_sec=30.0)


async def test_a_device_is_measured_after_a_failed_hook(tmp_path: Path) -> None:
    """Its fault ends by time, without a power cycle."""
    (driver,) = board()
    driver.hooks = Hooks(before_lease=Hook("before_lease", ("false",), 5.0))
    timing = replace(TIMING, hook_fault_sec=0.5)
    async with serve_bench(tmp_path, timing=timing, drivers=[driver]) as bench:
        device = bench.agent._roster.devices[0]  # noqa: SLF001
        await eventually(lambda: reading(bench) == 0.125)
        with pytest.raises(DeviceFaulted):
            await bench.holding(1).open()
        device.reference.latest_sec = None

        await eventually(lambda: device.reference.latest_sec == 0.125)
        assert len(bench.tracker.hellos) == 1  # another one would be an occasion, too


async def test_a_board_that_is_slower_than_its_siblings_becomes_suspect(tmp_path: Path) -> None:
    """Agents run the kernel, and their tracker compares: no client takes part."""
    clock = FakeClock()
    drivers = [*(board(name=name)[0] for name in "abc"), *board(SlowDriver, name="slow")]
    async with serve_tracker(clock=clock) as served:
        home = Home(tracker=served.address, state_dir=tmp_path)
        async with Agent(parse_config({}), drivers, home, finders=[], timing=TIMING) as agent:
            assert await agent.wait_attached(60.0)
            states = served.tracker.state.devices

            def is_suspect_later() -> bool:
                clock.advance(600.0)
                return states["devices/slow"].mark.state is HealthState.SUSPECT

            await eventually(is_suspect_later)

            assert {states[f"devices/{name}"].mark.state for name in "abc"} == {HealthState.GOOD}


async def test_a_simulated_device_is_not_measured(tmp_path: Path) -> None:
    """Its times are made up."""
    async with serve_bench(tmp_path, timing=TIMING, drivers=board(SimulatedDriver)) as bench:
        assert not bench.agent._roster.idle[DEVICE]._watching  # noqa: SLF001


async def test_a_device_is_measured_after_a_fault(tmp_path: Path) -> None:
    """The end of the lease under which it faulted starts a series, too."""
    timing = replace(TIMING, reference_series_sec=(0.3, 1e6))
    drivers = board(disconnect_after=1, reconnect_sec=0.5)
    async with serve_bench(tmp_path, timing=timing, drivers=drivers) as bench:
        device = bench.agent._roster.devices[0]  # noqa: SLF001
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
