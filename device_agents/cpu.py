"""Driver for the CPU of the agent's own machine.

    devices:
      - driver: cpu
        name: bench-01        # default: <host>-cpu
        threads: 4            # threads of parallel kernels; default: the machine's physical cores

Kernels run in TVM's runtime libraries alone, without its compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from device_agents.driver import Driver, WorkerSpec
from device_agents.host import Host, read_host
from device_agents.telemetry import HostTelemetry
from fleet.config import parse
from fleet.errors import ConfigError, DeviceError
from fleet.tvm_versions import check_versions, tvm_version
from fleet.v1 import device_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConfig:
    """Settings of one cpu device."""

    name: str | None = None
    threads: int | None = None
    sys_root: Path = Path("/")
    """Where /proc and /sys are found; tests bring recorded trees."""


class CpuDriver(Driver):
    """This machine's CPU."""

    kind = "cpu"
    preload = "device_agents.tvm_runtime"

    def __init__(self, device_id: str, config: CpuConfig, host_name: str) -> None:
        super().__init__(device_id)
        self._config = config
        self._host_name = host_name
        self._host: Host | None = None
        self._readings: HostTelemetry | None = None

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(CpuConfig, values, where=where)
        if config.threads is not None and config.threads < 1:
            raise ConfigError(f"{where}: threads: expected a number above zero, found {config.threads}")
        return [cls(config.name or f"{host_name}-cpu", config, host_name)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        return [{}]

    @property
    def resource(self) -> str:
        return "host-cores"

    async def _find(self) -> None:
        check_versions()
        self._host = read_host(self._config.sys_root)
        self._readings = HostTelemetry(self._config.sys_root)

    def _inventory(self) -> device_pb2.Inventory:
        host = self._found_host()
        cores = self._config.threads or host.core_count
        return device_pb2.Inventory(
            kind=self.kind,
            labels=host.labels(self._host_name, cores),
            target_json=host.target_json(cores),
            device_model=f"{host.model} x{cores}",
            host_fingerprint=host.fingerprint,
            memory_bytes=host.memory_bytes,
            core_count=cores,
            tvm_version=tvm_version() or "",
            facts=host.facts(),
        )

    def _worker_spec(self) -> WorkerSpec:
        threads = self._config.threads or self._found_host().core_count
        return WorkerSpec(
            runtime="device_agents.tvm_runtime:TvmRuntime",
            settings={"device_type": "cpu"},
            environment={"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)},
        )

    def _telemetry(self) -> device_pb2.Telemetry:
        if self._readings is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._readings.read()

    def _found_host(self) -> Host:
        if self._host is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._host
