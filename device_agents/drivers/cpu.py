"""Driver for the CPU of the agent's own machine.

    devices:
      - driver: cpu
        name: bench-01        # default: <host>-cpu
        threads: 4            # threads of parallel kernels; default: the physical cores among its processors
        cpus: [2, 3]          # or "2-3", big, little; default: all. The agent keeps off them where it has others
        reference_limit: 1.15 # times its usual time that the reference kernel may take

Kernels run in TVM's runtime libraries alone, without its compiler; on 32-bit ARM, which has none, in
device_agents.runtimes.plain.runtime.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Self

from device_agents.driver import Driver, NoStrays, WorkerSpec
from device_agents.machine.host import Host, own_cpus, read_host
from device_agents.machine.pinning import check_setting, choose_cpus
from device_agents.machine.telemetry import HostTelemetry
from device_agents.measuring.reference import DEFAULT_LIMIT
from device_agents.runtimes.plain import runtime as plain_runtime
from fleet.base.config import parse
from fleet.base.findings import Finding, State
from fleet.base.source_locations import at
from fleet.domain.devices import Inventory, RuntimeKind, Telemetry
from fleet.domain.tvm_versions import check_versions, tvm_version
from fleet.errors import ConfigError, FleetError

_PLAIN_RUNTIME = "device_agents.runtimes.plain.runtime:PlainRuntime"

_POOL_SPINS = 20_000
"""Number of times that an idle thread of TVM's pool yields its core before it sleeps: 3 to 10 ms. TVM's own 300,000
took a third of a worker's processor time. A sleeping thread starts some 50 us later, under 1 % of such a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuConfig:
    """Settings of one cpu device."""

    name: Annotated[str | None, "Id of the device; default: <host>-cpu, <host>-pi or <host>-zynq."] = None
    threads: Annotated[
        int | None,
        "Threads of parallel kernels; default: the physical cores among its processors.",
    ] = None
    cpus: Annotated[
        str | list[int] | None,
        'Processors that kernels keep to: all, big, little, or numbers as [2, 3] or "2-3"; default: all. The '
        "agent keeps off them where it has others.",
    ] = None
    reference_limit: Annotated[
        float,
        "Times its usual time that the reference kernel may take before measurements count as disturbed.",
    ] = DEFAULT_LIMIT
    sys_root: Annotated[Path, "Where /proc and /sys are found; for tests, which bring recorded trees."] = Path("/")

    def check(self, where: str) -> None:
        """Refuse impossible values.

        Raises:
            ConfigError: the key and its possible values.
        """
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"{at(where, 'threads')}: expected a number above zero, found {self.threads}")
        if not self.reference_limit > 1:  # also refuses nan
            place = at(where, "reference_limit")
            raise ConfigError(f"{place}: expected a number above 1, found {self.reference_limit:g}")
        check_setting(self.cpus, where=at(where, "cpus"))


class CpuDriver(Driver):
    """This machine's CPU."""

    kind = "cpu"
    settings: ClassVar[type[CpuConfig]] = CpuConfig
    suffix = "cpu"
    """Suffix of its id, unless the configuration names it."""

    preload = "device_agents.runtimes.tvm"

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
            self.preload = "device_agents.runtimes.plain.runtime"

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(cls.settings, values, where=where)
        config.check(where)
        return [cls(config.name or f"{host_name}-{cls.suffix}", config, host_name)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        return [{}]

    @classmethod
    def diagnose(cls) -> list[Finding]:
        name = f"device {cls.kind}"
        try:
            inventory = asyncio.run(cls._look())
        except (FleetError, OSError) as error:
            if tvm_version() is None:  # on a tracker's or client's machine, which serves no device, that is fine
                advice = "needed to serve this machine's processor: pip install 'tvm-fleet[agent]'"
                return [Finding(name=name, state=State.WARNING, seen="not served without TVM's runtime", advice=advice)]
            advice = "describe the device in an agent.yaml and serve it with: fleet agent serve --config agent.yaml"
            return [Finding(name=name, state=State.PROBLEM, seen=str(error), advice=advice)]
        size = f"{inventory.core_count} cores, {inventory.memory_bytes / 1e9:.1f} GB"
        return [Finding(name=name, seen=f"{inventory.device_model}, {size}, {inventory.target_json}")]

    @classmethod
    async def _look(cls) -> Inventory:
        (driver,) = cls.from_config({}, where="diagnosis", host_name="host")
        await driver.open(NoStrays())
        try:
            return driver.inventory()
        finally:
            await driver.close()

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
        self._cpus = choose_cpus(self._config.cpus, usable, root, where=at(self.place, "cpus"))
        self._host = read_host(root, usable_cpus=set(self._cpus) or usable)
        if (threads := self._config.threads or 1) > self._host.cpu_count:
            raise ConfigError(
                f"{at(self.place, 'threads')}: {threads}, and its kernels keep to {self._host.cpu_count} processors; "
                "more threads than these only wait for each other"
            )
        self._readings = HostTelemetry(root, self._cpus)

    def _inventory(self) -> Inventory:
        host = self._opened(self._host)
        cores = self._config.threads or host.core_count
        return Inventory(
            kind=self.kind,
            labels={**host.labels(self._host_name, cores), **({"runtime": "plain"} if self._is_plain else {})},
            target_json=host.target_json(cores),
            device_model=f"{host.model} x{cores}",
            host_fingerprint=host.fingerprint,
            memory_bytes=host.memory_bytes,
            core_count=cores,
            tvm_version=tvm_version() or "",
            facts=host.facts(),
            runtime=RuntimeKind.PLAIN if self._is_plain else RuntimeKind.TVM,
        )

    def _worker_spec(self) -> WorkerSpec:
        threads = self._config.threads or self._opened(self._host).core_count
        environment = {
            "TVM_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
            "TVM_THREAD_POOL_SPIN_COUNT": str(_POOL_SPINS),
        }
        if self._cpus or self._opened(self._host).cpu_count < (os.cpu_count() or 1):
            # TVM numbers processors from 0 and would bind its threads to the wrong ones, even to processors outside the
            # mask set by `taskset`.
            environment["TVM_BIND_THREADS"] = "0"
        return WorkerSpec(
            runtime=_PLAIN_RUNTIME if self._is_plain else "device_agents.runtimes.tvm:TvmRuntime",
            settings={"device_type": "cpu"},
            environment=environment,
            cpus=self._cpus,
        )

    def _telemetry(self) -> Telemetry:
        return self._opened(self._readings).read()
