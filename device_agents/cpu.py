"""Driver for the CPU of the agent's own machine.

    devices:
      - driver: cpu
        name: bench-01        # default: <host>-cpu
        threads: 4            # threads of parallel kernels; default: the physical cores among its processors
        cpus: [2, 3]          # or "2-3", big, little; default: all. The agent keeps off them where it has others
        reference_limit: 1.15 # times its usual time that the reference kernel may take

Kernels run in TVM's runtime libraries alone, without its compiler; on 32-bit ARM, which has none, in
device_agents.plain_runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from device_agents import plain_runtime
from device_agents.driver import Driver, WorkerSpec
from device_agents.host import Host, own_cpus, read_host
from device_agents.pinning import check_setting, choose_cpus
from device_agents.reference import DEFAULT_LIMIT
from device_agents.telemetry import HostTelemetry
from fleet.config import parse
from fleet.errors import ConfigError, DeviceError
from fleet.tvm_versions import check_versions, tvm_version
from fleet.v1 import device_pb2

_PLAIN_RUNTIME = "device_agents.plain_runtime:PlainRuntime"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConfig:
    """Settings of one cpu device."""

    name: str | None = None
    threads: int | None = None
    cpus: str | list[int] | None = None
    """See device_agents.pinning."""

    reference_limit: float = DEFAULT_LIMIT
    sys_root: Path = Path("/")
    """Where /proc and /sys are found; tests bring recorded trees."""

    def check(self, where: str) -> None:
        """Refuse values that no machine can have.

        Raises:
            ConfigError: the key and what it may be.
        """
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"{where}: threads: expected a number above zero, found {self.threads}")
        if self.reference_limit <= 1:
            raise ConfigError(f"{where}: reference_limit: expected a number above 1, found {self.reference_limit:g}")
        check_setting(self.cpus, where=where)


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
        self._cpus: tuple[int, ...] = ()
        self.reference_limit = config.reference_limit
        self._is_plain = plain_runtime.is_only_choice()
        if self._is_plain:
            self.preload = "device_agents.plain_runtime"

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(CpuConfig, values, where=where)
        config.check(where)
        return [cls(config.name or f"{host_name}-cpu", config, host_name)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        return [{}]

    @property
    def resource(self) -> str:
        return "host-cores"

    @property
    def cpus(self) -> tuple[int, ...]:
        return self._cpus

    async def _find(self) -> None:
        if not self._is_plain:
            check_versions()
        root, usable = self._config.sys_root, own_cpus()
        self._cpus = choose_cpus(self._config.cpus, usable, root, where=self.name)
        self._host = read_host(root, usable_cpus=set(self._cpus) or usable)
        self._readings = HostTelemetry(root, self._cpus)

    def _inventory(self) -> device_pb2.Inventory:
        host = self._found_host()
        cores = self._config.threads or host.core_count
        return device_pb2.Inventory(
            kind=self.kind,
            labels={**host.labels(self._host_name, cores), **({"runtime": "plain"} if self._is_plain else {})},
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
        environment = {"TVM_NUM_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        if self._cpus:
            # TVM counts its processors from 0, and would bind its threads to others than these.
            environment["TVM_BIND_THREADS"] = "0"
        return WorkerSpec(
            runtime=_PLAIN_RUNTIME if self._is_plain else "device_agents.tvm_runtime:TvmRuntime",
            settings={"device_type": "cpu"},
            environment=environment,
            cpus=self._cpus,
        )

    def _telemetry(self) -> device_pb2.Telemetry:
        if self._readings is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._readings.read()

    def _found_host(self) -> Host:
        if self._host is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._host
