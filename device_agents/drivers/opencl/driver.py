"""Driver for OpenCL devices of the agent's own Linux machine.

    devices:
      - driver: opencl              # alone: every OpenCL device found
        type: gpu                   # "gpu", "accelerator", "custom", "cpu"; default "*"
        platform: "Intel*"          # pattern of the platform's name, as `clinfo -l` shows it; default "*"
        device: "*Arc*"             # pattern of the device's name; default "*"
        name: arc                   # default: <host>-opencl; several devices: arc-0, arc-1, ...

OpenCL's loader finds the vendor's driver in /etc/OpenCL/vendors:
https://registry.khronos.org/OpenCL/specs/unified/html/OpenCL_Ext.html#cl_khr_icd-opencl. The stock wheel of TVM has no
OpenCL runtime: ours is compiled when the first device opens (device_agents.runtimes.opencl.build), unless TVM's own
libtvm_runtime_opencl.so lies beside TVM's other libraries. Buffers only: no images (textures).

Without a configuration the agent serves all devices other than CPUs, and no GPU that the drivers cuda and rocm serve. A
CPU by OpenCL (PoCL) is served on request; it and the driver cpu then take turns.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.drivers.opencl.devices import OpenClDevice, find_opencl_devices
from device_agents.drivers.opencl.sensors import GpuSensors
from device_agents.machine.blocking_reads import Source
from device_agents.machine.host import Host, read_host, slug
from device_agents.machine.telemetry import HostTelemetry
from device_agents.runtimes.opencl.build import ensure_plugin
from device_agents.runtimes.opencl.loader import upstream_library
from fleet.base.config import parse
from fleet.base.findings import Finding, State
from fleet.base.source_locations import at
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import check_versions, tvm_version
from fleet.errors import ConfigError, DeviceError, DeviceMissing, FleetError

_TYPES = ("gpu", "accelerator", "custom", "cpu")
_SERVED_BY_OTHERS = {"nvidia cuda": "proc/driver/nvidia", "amd accelerated parallel processing": "dev/kfd"}
"""Platforms of devices that another driver (cuda or rocm) serves if this file exists."""

_MOST_THREADS = {"cpu": 256}
"""Largest work group, by type, even if the device allows more: on a CPU, larger ones only cost stack."""

_MOST_THREADS_ELSEWHERE = 1024
_CHECK_SEC = 60.0
"""Interval between checks that a device is still there. Each starts a process, on cores that may be measured."""

_DEVICE_FILES = (
    *("/dev/dri/*", "/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/mali*", "/dev/kgsl-3d0", "/dev/pvr*"),
    *("/dev/galcore", "/dev/dxg", "/dev/ion", "/dev/dma_heap/*"),
)
"""Device files of the GPUs that have an OpenCL driver."""

DRIVERS = Source(name="the device's OpenCL driver", remedy="try: clinfo -l", limit_sec=3.0)
"""Has a longer limit than others: each look starts a process, which takes a second on a small board."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClConfig:
    """Settings of one entry."""

    name: Annotated[str | None, "Id of the device, numbered where several fit; default: <host>-opencl."] = None
    type: Annotated[str, "gpu, accelerator, custom or cpu."] = "*"
    platform: Annotated[str, "Pattern of the platform's name, as `clinfo -l` shows it."] = "*"
    device: Annotated[str, "Pattern of the device's name."] = "*"


class OpenClDriver(Driver):
    """One OpenCL device."""

    kind = "opencl"
    settings = OpenClConfig
    preload = "device_agents.runtimes.tvm"

    def __init__(
        self,
        device_id: str,
        device: OpenClDevice,
        host_name: str,
        *,
        source: Source = DRIVERS,
        check_sec: float = _CHECK_SEC,
        list_devices: Callable[[], list[OpenClDevice]] = find_opencl_devices,
    ) -> None:
        # A CPU cannot disappear, and its readings are plain files.
        super().__init__(device_id, None if device.type == "cpu" else source)
        self._check_sec = check_sec
        self._list_devices = list_devices
        self._device = device
        self._host_name = host_name
        self._library = Path()
        self._host: Host | None = None
        self._readings: HostTelemetry | None = None
        self._sensors: GpuSensors | None = None
        self._health = Health()
        self._looked_at_sec = 0.0

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(OpenClConfig, values, where=where)
        if config.type not in ("*", *_TYPES):
            raise ConfigError(f"{at(where, 'type')}: expected one of {', '.join(_TYPES)} or '*', found {config.type!r}")
        found = find_opencl_devices()
        chosen = [device for device in found if _is_chosen(device, config)]
        if not chosen:
            names = "; ".join(f"{device.type} {device.name!r} of {device.platform!r}" for device in found)
            raise DeviceMissing(f"{where}: no OpenCL device fits; found are {names}")
        base = config.name or f"{host_name}-opencl"
        ids = [base] if len(chosen) == 1 else [f"{base}-{index}" for index in range(len(chosen))]
        return [cls(device_id, device, host_name) for device_id, device in zip(ids, chosen, strict=True)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        icds = [path.stem for path in sorted((root / "etc/OpenCL/vendors").glob("*.icd"))]
        if all(name == "pocl" for name in icds):  # only the CPU's driver, or none: no child process needed
            return []
        found = [
            device
            for device in find_opencl_devices()
            if device.type != "cpu" and not _is_served_by_another(device, root)
        ]
        pairs = dict.fromkeys((device.type, _literal(device.platform)) for device in found)
        entries: list[dict[str, object]] = [{"type": type_name, "platform": platform} for type_name, platform in pairs]
        if len(entries) > 1:
            entries = [{**entry, "name": f"opencl-{index}"} for index, entry in enumerate(entries)]
        return entries

    @classmethod
    def diagnose(cls) -> list[Finding]:
        try:
            devices = find_opencl_devices()
        except FleetError as error:
            return [Finding(name=cls.kind, seen=f"no devices: {error}")]
        seen = ", ".join(f"{device.type} {device.name}" for device in devices)
        try:
            runtime = upstream_library() or ensure_plugin()
        except FleetError as error:
            seen = f"{seen}; no runtime for them"
            return [Finding(name=cls.kind, state=State.WARNING, seen=seen, advice=str(error))]
        return [Finding(name=cls.kind, seen=f"{seen}, run by {runtime.name}")]

    @property
    def resource(self) -> str:
        return "host-cores" if self._device.type == "cpu" else self.name

    async def _find(self) -> None:
        check_versions()
        self._host = read_host()
        self._readings = HostTelemetry()
        self._sensors = GpuSensors(self._device.pci_address)
        upstream = upstream_library()
        self._library = upstream if upstream is not None else await asyncio.to_thread(ensure_plugin)
        self._looked_at_sec = time.monotonic()

    def _probe(self) -> Health:
        if self._device.type != "cpu" and time.monotonic() - self._looked_at_sec >= self._check_sec:
            self._health = self._look()
            self._looked_at_sec = time.monotonic()
        return self._health

    def _look(self) -> Health:
        try:
            found = self._list_devices()
        except (ConfigError, DeviceError, OSError, ValueError) as error:
            return Health(is_healthy=False, reason=str(error))
        is_there = any((d.index, d.name) == (self._device.index, self._device.name) for d in found)
        reason = "" if is_there else f"OpenCL no longer lists {self._device.name!r}; look with: clinfo -l"
        return Health(is_healthy=is_there, reason=reason)

    def _inventory(self) -> Inventory:
        host, device = self._opened(self._host), self._device
        return Inventory(
            kind=self.kind,
            labels=self._labels(host),
            target_json=json.dumps(target_of(device, host)),
            device_model=f"{device.name} ({device.platform}) x{device.compute_units}",
            host_fingerprint=host.fingerprint,
            memory_bytes=device.memory_bytes,
            core_count=host.core_count if device.type == "cpu" else device.compute_units,
            tvm_version=tvm_version() or "",
            facts=host.software | self._facts(),
        )

    def _labels(self, host: Host) -> dict[str, str]:
        device = self._device
        labels = {
            "arch": host.arch,
            "model": slug(device.name),
            "cores": str(device.compute_units),
            "host": self._host_name,
            "type": device.type,
            "platform": slug(device.platform),
            "vendor": slug(device.vendor),
        }
        return {**labels, "fp16": "true"} if device.has_fp16 else labels

    def _facts(self) -> dict[str, str]:
        device = self._device
        facts = {
            "OpenCL": device.version,
            "driver": device.driver_version,
            "platform": device.platform,
            "largest work group": str(device.work_group_size),
            "local memory": f"{device.local_memory_bytes // 1024} KiB",
            "largest buffer": f"{device.largest_buffer_bytes // 1024**2} MiB",
            "runtime": "TVM's own" if self._library == upstream_library() else "built-in, without images",
        }
        if device.clock_mhz:
            facts["max frequency"] = f"{device.clock_mhz} MHz"
        return {**facts, "PCI address": device.pci_address} if device.pci_address else facts

    def _worker_spec(self) -> WorkerSpec:
        settings = {"library": str(self._library), "device_index": self._device.index, "device_name": self._device.name}
        # Drivers of GPUs reserve address space by the terabyte.
        return WorkerSpec(
            runtime="device_agents.runtimes.opencl.runtime:OpenClRuntime",
            settings=settings,
            devices=_DEVICE_FILES,
            limits_address_space=self._device.type == "cpu",
        )

    def _telemetry(self) -> Telemetry:
        host = self._opened(self._readings).read()
        return host if self._device.type == "cpu" else self._opened(self._sensors).read(host)


def target_of(device: OpenClDevice, host: Host) -> dict[str, object]:
    """Return the TVM target of a device: its kernels, and the host code that launches them."""
    threads = min(device.work_group_size, _MOST_THREADS.get(device.type, _MOST_THREADS_ELSEWHERE))
    return {
        "kind": "opencl",
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_shared_memory_per_block": device.local_memory_bytes,
        "thread_warp_size": 1,
        "host": json.loads(host.target_json(host.core_count)),
    }


def _is_chosen(device: OpenClDevice, config: OpenClConfig) -> bool:
    wanted = ((device.type, config.type), (device.platform, config.platform), (device.name, config.device))
    return all(fnmatch.fnmatchcase(text.lower(), pattern.lower()) for text, pattern in wanted)


def _is_served_by_another(device: OpenClDevice, root: Path) -> bool:
    sign = _SERVED_BY_OTHERS.get(device.platform.lower())
    return sign is not None and (root / sign).exists()


def _literal(text: str) -> str:
    """Return a pattern that matches exactly this text."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)
