"""Driver for AMD GPUs on the agent's host, found through the kernel's own files; needs no library of ROCm itself.

    devices:
      - driver: rocm                        # all GPUs of this machine
      - driver: rocm
        gpu: 1901ead3a2ecd4a6               # its unique_id, or its PCI address "0000:63:00.0"
        name: bench-mi210                   # default: <host>-rocm-<first part of the unique_id, or PCI address>
        tvm_library: ~/tvm/build/libtvm_runtime_rocm.so

TVM's wheel has no runtime for ROCm: build TVM of the same version with USE_ROCM on the host and name its
libtvm_runtime_rocm.so, or put it beside the installed TVM's libraries. Without one the device is listed, and faulted.
The agent's user has to be in the groups render and video.

https://rocm.docs.amd.com/projects/install-on-linux/en/latest/install/prerequisites.html
https://docs.kernel.org/gpu/amdgpu/
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from device_agents.blocking_reads import Source, ask_in_time
from device_agents.driver import Driver, Health, WorkerSpec
from device_agents.gpu_host import ForeignProcesses, gpu_labels, host_target, own_library
from device_agents.host import Host, read_host
from device_agents.rocm_sysfs import AmdGpu, compute_pids, is_hung, list_gpus, read_gpu, unusable_file
from device_agents.runtime_check import why_not
from fleet.config import parse
from fleet.errors import DeviceError, DeviceMissing
from fleet.tvm_versions import check_versions, tvm_version
from fleet.v1 import device_pb2
from fleet.wire import timestamp

_THREADS_PER_BLOCK = 256
"""TVM's own bound for this target; the hardware takes 1024."""

_LAST_CACHE_MIB = {"gfx906": 4, "gfx908": 8, "gfx90a": 8, "gfx942": 256, "gfx1030": 128, "gfx1100": 96, "gfx1101": 64}
"""Infinity Cache where there is one, else L2, of the largest model.
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html"""

_AMDGPU = Source(
    name="amdgpu",
    remedy="the card's firmware or the kernel's driver hangs: look at dmesg for amdgpu, then restart the host",
)
_START_SEC = 10.0
"""Of looking at all cards, of which some may have to wake."""

_BUILD_IT = (
    "TVM's wheel has no runtime for ROCm: build TVM of the same version with USE_ROCM, and name its "
    "libtvm_runtime_rocm.so as tvm_library"
)
_REMEDIES = {
    "libtvm_runtime_rocm.so: cannot open": _BUILD_IT,
    "libamdhip64": "install ROCm's HIP runtime, or add its lib directory to /etc/ld.so.conf.d",
    "libhsa-runtime64": "install ROCm's HSA runtime, or add its lib directory to /etc/ld.so.conf.d",
    "cannot open shared object": _BUILD_IT,
}
_GROUPS = (
    "add the agent's user to the groups that own it (sudo usermod -aG render,video USER, then log in again); "
    "in a container, start it with --device /dev/kfd --device /dev/dri"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmConfig:
    """Settings of one entry; see the module's docstring."""

    gpu: str | None = None
    name: str | None = None
    tvm_library: Path | None = None
    sys_root: Path = Path("/")
    """Where /sys, /dev and /proc are found; tests bring recorded trees."""


class RocmDriver(Driver):
    """One AMD GPU."""

    kind = "rocm"
    preload = "device_agents.gpu_runtime"
    source = _AMDGPU

    def __init__(self, device_id: str, config: RocmConfig, host_name: str) -> None:
        super().__init__(device_id)
        self._config = config
        self._host_name = host_name
        self._gpu: AmdGpu | None = None
        self._host: Host | None = None
        self._foreign = ForeignProcesses()
        self._runtime_fault = ""

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(RocmConfig, values, where=where)
        if config.gpu is not None:
            return [cls(config.name or f"{host_name}-rocm-{_short(config.gpu)}", config, host_name)]
        gpus = _gpus_of_entry(config.sys_root, where)
        if not gpus:
            raise DeviceMissing(f"{where}: {_why_none(config.sys_root)}")
        base = config.name or f"{host_name}-rocm"
        is_named = config.name is not None and len(gpus) == 1
        return [
            cls(base if is_named else f"{base}-{_short(_key(gpu))}", replace(config, gpu=_key(gpu)), host_name)
            for gpu in gpus
        ]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        return [{"gpu": _key(gpu)} for gpu in ask_in_time(_AMDGPU, lambda: list_gpus(root), _START_SEC)]

    @property
    def resource(self) -> str:
        return f"rocm-{self._config.gpu}"

    async def _find(self) -> None:
        check_versions()
        root = self._config.sys_root
        gpus = {_key(gpu): gpu for gpu in await self._ask(lambda: list_gpus(root), _START_SEC)}
        by_address = {gpu.pci_bus_id: gpu for gpu in gpus.values()}
        wanted = (self._config.gpu or "").lower().removeprefix("0x")
        self._gpu = gpus.get(wanted) or by_address.get(wanted)
        if self._gpu is None:
            listed = ", ".join(f"{key} ({gpu.name})" for key, gpu in gpus.items())
            found = f"there are: {listed}" if listed else _why_none(root)
            raise DeviceError(f"{self.name}: this machine has no AMD GPU {self._config.gpu!r}; {found}")
        self._host = read_host()
        self._runtime_fault = await why_not(self._libraries(), _REMEDIES)

    def _inventory(self) -> device_pb2.Inventory:
        gpu, host = self._found()
        labels = {**gpu_labels(host, self._host_name, gpu.name, gpu.memory_bytes), "gfx": gpu.gfx}
        if gpu.unique_id:
            labels["unique_id"] = gpu.unique_id
        return device_pb2.Inventory(
            kind=self.kind,
            labels=labels,
            target_json=json.dumps(target(gpu, host)),
            device_model=gpu.name,
            host_fingerprint=host.fingerprint,
            memory_bytes=gpu.memory_bytes,
            core_count=max(1, gpu.compute_units),
            tvm_version=tvm_version() or "",
            facts=_facts(gpu, host),
        )

    def _worker_spec(self) -> WorkerSpec:
        gpu, _ = self._found()
        visible = f"GPU-{gpu.unique_id}" if gpu.unique_id else str(gpu.ordinal)
        return WorkerSpec(
            runtime="device_agents.gpu_runtime:GpuRuntime",
            settings={"device_type": "rocm", "libraries": self._libraries(), "l2_bytes": last_cache_bytes(gpu)},
            environment={"ROCR_VISIBLE_DEVICES": visible},
            limits_address_space=False,
        )

    def _probe(self) -> Health:
        gpu, _ = self._found()
        root = self._config.sys_root
        if is_hung(gpu, root):
            return Health(
                is_healthy=False, reason=f"{gpu.name} at {gpu.pci_bus_id} does not answer; look at dmesg for amdgpu"
            )
        closed = unusable_file(gpu, root)
        if closed is not None:
            shown = f"/{closed.relative_to(root)}"
            trouble = f"may not open {shown}" if closed.exists() else f"finds no {shown}"
            return Health(is_healthy=False, reason=f"the agent {trouble}: {_GROUPS}")
        return Health(is_healthy=not self._runtime_fault, reason=self._runtime_fault)

    def _telemetry(self) -> device_pb2.Telemetry:
        gpu, _ = self._found()
        root = self._config.sys_root
        reading = read_gpu(gpu, root)
        telemetry = device_pb2.Telemetry(read_at=timestamp(time.time()), load_1min=os.getloadavg()[0])
        for field, value in (
            ("temp_c", reading.temp_c),
            ("freq_hz", reading.freq_hz),
            ("power_w", reading.power_w),
            ("memory_available_bytes", reading.free_bytes),
            ("foreign_processes", self._foreign.count(lambda: compute_pids(gpu, root))),
        ):
            if value is not None:
                setattr(telemetry, field, value)
        telemetry.throttle_reasons.extend(reading.throttle_reasons)
        return telemetry

    def _libraries(self) -> list[str]:
        return [own_library(self._config.tvm_library, "libtvm_runtime_rocm.so")]

    def _found(self) -> tuple[AmdGpu, Host]:
        if self._gpu is None or self._host is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._gpu, self._host


def target(gpu: AmdGpu, host: Host) -> dict[str, Any]:
    """Return the TVM target of kernels for a GPU, with the host that launches them."""
    return {
        "kind": "rocm",
        "mcpu": gpu.gfx,
        "max_shared_memory_per_block": gpu.lds_bytes,
        "max_threads_per_block": _THREADS_PER_BLOCK,
        "max_num_threads": _THREADS_PER_BLOCK,
        "thread_warp_size": gpu.wave_size,
        "host": host_target(host),
    }


def last_cache_bytes(gpu: AmdGpu) -> int:
    """Return the size of the last cache before memory [bytes]: what a flush has to push out."""
    return max(gpu.cache_bytes, _LAST_CACHE_MIB.get(gpu.gfx, 8) * 1024**2)


def _gpus_of_entry(root: Path, where: str) -> list[AmdGpu]:
    try:
        return ask_in_time(_AMDGPU, lambda: list_gpus(root), _START_SEC)
    except DeviceError as error:
        raise DeviceMissing(f"{where}: {error}") from error


def _key(gpu: AmdGpu) -> str:
    """Return what names a GPU over reboots."""
    return gpu.unique_id or gpu.pci_bus_id


def _short(key: str) -> str:
    key = key.lower().removeprefix("0x")
    return re.sub(r"[^0-9a-f]+", "-", key) if ":" in key else key[:8]


def _why_none(root: Path) -> str:
    if not (root / "sys/class/kfd").exists():
        return (
            "no AMD GPU: the kernel's compute driver is not loaded (there is no /sys/class/kfd); install the amdgpu "
            "driver, or give the container access to /sys"
        )
    return "the kernel's compute driver is loaded, but lists no GPU in /sys/class/kfd; look at dmesg for amdgpu"


def _facts(gpu: AmdGpu, host: Host) -> dict[str, str]:
    facts = {
        "architecture": gpu.gfx,
        "PCI bus": gpu.pci_bus_id,
        "render node": f"renderD{gpu.render_minor}",
        "last cache": f"{last_cache_bytes(gpu) // 1024**2} MiB",
        "host CPU": host.model,
    }
    if gpu.unique_id:
        facts["unique id"] = gpu.unique_id
    if gpu.max_clock_hz:
        facts["max clock"] = f"{gpu.max_clock_hz / 1e6:.0f} MHz"
    if gpu.link:
        facts["link"] = gpu.link
    return facts
