"""Devices that log their runs: simulated ones, and this machine's processors.

The worker itself writes, while it runs the candidate, into a log that stands for the hardware: while a run has the
device, it holds a lock on that file. The ids of a holder's trials name the lease under which it believes to run.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from device_agents.driver import WorkerSpec
from device_agents.drivers.cpu import CpuDriver
from device_agents.drivers.simulated import SimulatedDriver
from device_agents.runtimes import simulated
from device_agents.runtimes.simulated import SimulatedRuntime
from fleet.domain.measuring import Measurement, Trial
from tests.chaos.history import Log, What

DRIVERS = {"chaos_simulated": "tests.chaos.board:LoggedSimulated", "chaos_cpu": "tests.chaos.board:LoggedCpu"}
_LOGS, _LOG, _DEVICE = "CHAOS_DEVICE_LOGS", "CHAOS_DEVICE_LOG", "CHAOS_DEVICE"


def trial_id(lease: str, epoch: int, number: int) -> str:
    """Return the id of a trial, from which its device reads the lease."""
    return f"{lease}|{epoch}|{number}"


def _lease_of(candidate_id: str) -> tuple[str, int]:
    """Return a trial's lease and epoch; none if a tuner chose the id."""
    lease, _, rest = candidate_id.partition("|")
    epoch = rest.partition("|")[0]
    return (lease, int(epoch)) if epoch.isdigit() else ("", 0)


class DeviceLog:
    """One worker's log of its device."""

    def __init__(self) -> None:
        self._device = os.environ[_DEVICE]
        self._log = Log(Path(os.environ[_LOG]), f"{self._device} (worker)")

    @contextlib.contextmanager
    def running(self, trial: Trial) -> Iterator[None]:
        """Log a run's begin and end, and whether the device was free."""
        lease, epoch = _lease_of(trial.candidate_id)
        run = f"{trial.candidate_id}#{time.monotonic_ns()}"
        is_alone = True
        try:
            fcntl.flock(self._log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_alone = False
        self._write(What.BEGIN, run=run, lease=lease, epoch=epoch, is_alone=is_alone)
        try:
            yield
        finally:
            self._write(What.END, run=run, lease=lease, epoch=epoch)
            fcntl.flock(self._log, fcntl.LOCK_UN)

    def _write(self, what: What, *, run: str, lease: str, epoch: int, is_alone: bool = True) -> None:
        self._log.write(what, device=self._device, run=run, lease=lease, epoch=epoch, is_alone=is_alone)


@functools.cache
def device_log() -> DeviceLog:
    """Return the one log of a worker, opened at its first run."""
    return DeviceLog()


class LoggedRuntime(SimulatedRuntime):
    """Runtime of a simulated device that logs its runs."""

    def measure(self, trial: Trial, path: str) -> Measurement:
        with device_log().running(trial):
            return super().measure(trial, path)


class LoggedSimulated(SimulatedDriver):
    """A simulated device with a log."""

    preload = "tests.chaos.board"

    def _worker_spec(self) -> WorkerSpec:
        return _logged(super()._worker_spec(), self.name, "tests.chaos.board:LoggedRuntime")


class LoggedCpu(CpuDriver):
    """This machine's processors with a log."""

    preload = "tests.chaos.cpu_runtime"

    def _worker_spec(self) -> WorkerSpec:
        return _logged(super()._worker_spec(), self.name, "tests.chaos.cpu_runtime:LoggedTvmRuntime")


def preload() -> None:
    """Load the worker's dependencies."""
    simulated.preload()


def _logged(spec: WorkerSpec, device: str, runtime: str) -> WorkerSpec:
    path = os.path.join(os.environ[_LOGS], f"{device.replace('/', '-')}.jsonl")  # noqa: PTH118
    environment = {**spec.environment, _LOG: path, _DEVICE: device}
    return replace(spec, runtime=runtime, environment=environment, devices=(*spec.devices, path))
