"""TVM's runtime on a device that logs its runs."""

from __future__ import annotations

from device_agents.runtimes import tvm
from device_agents.runtimes.tvm import TvmRuntime
from fleet.domain.measuring import Measurement, Trial
from tests.chaos.board import device_log


class LoggedTvmRuntime(TvmRuntime):
    """A processor's."""

    def measure(self, trial: Trial, path: str) -> Measurement:
        with device_log().running(trial):
            return super().measure(trial, path)


def preload() -> None:
    """Load the worker's dependencies."""
    tvm.preload()
