"""Driver for a box of our lab: a small computer with a fan controller that writes its state to a file.

    devices:
      - driver: fan_box
        name: bench-7         # default: <host>-fan-box
        state_file: /run/fan-box/state
        max_temp_c: 70        # above it the box takes no lease

The controller writes one line, `<temperature [degC]> <fan speed [1/min]>`, twice a second. Kernels run on the box's
processor, in TVM's own runtime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.machine.host import Host, read_host
from fleet.base.config import parse
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import check_versions, tvm_version
from fleet.errors import DeviceMissing

_DEFAULT_STATE = Path("/run/fan-box/state")


@dataclass(frozen=True, slots=True, kw_only=True)
class FanBoxConfig:
    """Settings of one box. The documentation and error messages contain these sentences."""

    name: Annotated[str | None, "Id of the device; default: <host>-fan-box."] = None
    state_file: Annotated[Path, "What the fan controller writes."] = _DEFAULT_STATE
    max_temp_c: Annotated[float, "Above this temperature the box takes no lease [degC]."] = 70.0


class FanBoxDriver(Driver):
    """The processor of one box."""

    kind = "fan_box"
    settings = FanBoxConfig
    preload = "device_agents.runtimes.tvm"
    replaces = ("cpu",)  # the same processor: an agent that finds a fan_box serves no plain "cpu" beside it

    def __init__(self, device_id: str, config: FanBoxConfig) -> None:
        """No I/O here: `_find` does it."""
        super().__init__(device_id)
        self._config = config
        self._host: Host | None = None

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(FanBoxConfig, values, where=where)
        return [cls(config.name or f"{host_name}-fan-box", config)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        state_file = root / _DEFAULT_STATE.relative_to("/")
        return [{"state_file": str(state_file)}] if state_file.exists() else []

    @property
    def resource(self) -> str:
        return "host-cores"  # as the drivers of other processors say it: all of them take turns

    async def _find(self) -> None:
        check_versions()
        try:
            self._read()
        except OSError as error:
            raise DeviceMissing(
                f"{self.name}: no fan controller: cannot read {self._config.state_file} ({error.strerror})"
            ) from error
        self._host = read_host()

    def _inventory(self) -> Inventory:
        host = self._opened(self._host)
        return Inventory(
            kind=self.kind,
            labels=host.labels(self.device_id, host.core_count),
            target_json=host.target_json(host.core_count),
            device_model=f"fan box, {host.model} x{host.core_count}",
            host_fingerprint=host.fingerprint,
            memory_bytes=host.memory_bytes,
            core_count=host.core_count,
            tvm_version=tvm_version() or "",
        )

    def _worker_spec(self) -> WorkerSpec:
        threads = str(self._opened(self._host).core_count)
        return WorkerSpec(
            runtime="device_agents.runtimes.tvm:TvmRuntime",
            settings={"device_type": "cpu"},
            environment={"TVM_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
        )

    def _probe(self) -> Health:
        """Describe the problem. An OSError or ValueError is turned into a Health by the caller."""
        temp_c, fan_rpm = self._read()
        if fan_rpm == 0:
            return Health(is_healthy=False, reason="the fan stands still; look at its cable")
        if temp_c > self._config.max_temp_c:
            return Health(
                is_healthy=False, reason=f"{temp_c:.0f} C, above {self._config.max_temp_c:.0f} C; it cools down"
            )
        return Health()

    def _telemetry(self) -> Telemetry:
        try:
            temp_c = self._read()[0]
        except (OSError, ValueError):
            temp_c = None  # unknown; the probe reports the reason
        return Telemetry(read_at_sec=time.time(), temp_c=temp_c)

    def _read(self) -> tuple[float, int]:
        """Return temperature [degC] and fan speed [1/min]."""
        temp, speed = self._config.state_file.read_text().split()
        return float(temp), int(speed)
