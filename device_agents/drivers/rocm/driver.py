"""Driver for AMD GPUs on the agent's host, found through the kernel's own files. Needs no ROCm library.

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

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from device_agents.driver import Health, WorkerSpec
from device_agents.drivers.gpu import ForeignProcesses, GpuDriver, device_ids, own_library
from device_agents.drivers.rocm.sysfs import AmdGpu, compute_pids, is_hung, list_gpus, read_gpu, unusable_file
from device_agents.machine.blocking_reads import Source, ask_in_time
from device_agents.machine.host import read_host
from device_agents.runtimes.check import why_not
from fleet.base.config import parse
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import check_versions
from fleet.errors import DeviceError, DeviceMissing

_THREADS_PER_BLOCK = 256
"""TVM's own limit for this target; the hardware allows 1024."""

_LAST_CACHE_MIB = {"gfx906": 4, "gfx908": 8, "gfx90a": 8, "gfx942": 256, "gfx1030": 128, "gfx1100": 96, "gfx1101": 64}
"""Infinity Cache where there is one, else L2, of the largest model.
https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html"""

AMDGPU = Source(
    name="amdgpu",
    remedy="the card's firmware or the kernel's driver hangs: look at dmesg for amdgpu, then restart the host",
)

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

    gpu: Annotated[str | None, 'Its unique_id, or its PCI address as "0000:63:00.0"; default: all GPUs.'] = None
    name: Annotated[
        str | None,
        "Id of the device; default: <host>-rocm-<first part of the unique_id, or PCI address>.",
    ] = None
    tvm_library: Annotated[Path | None, "libtvm_runtime_rocm.so; default: beside the installed TVM's libraries."] = None
    sys_root: Annotated[
        Path,
        "Where /proc, /sys and /dev are found; for tests, which bring recorded trees.",
    ] = Path("/")


class RocmDriver(GpuDriver[AmdGpu]):
    """One AMD GPU."""

    kind = "rocm"
    settings = RocmConfig

    def __init__(
        self,
        device_id: str,
        config: RocmConfig,
        host_name: str,
        *,
        source: Source = AMDGPU,
        foreign: ForeignProcesses | None = None,
    ) -> None:
        super().__init__(device_id, host_name, source, foreign)
        self._config = config

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(RocmConfig, values, where=where)
        keys = [config.gpu] if config.gpu is not None else _keys_of_entry(config.sys_root, where)
        ids = device_ids(config.name, f"{host_name}-rocm", [_short(key) for key in keys])
        return [cls(name, replace(config, gpu=key), host_name) for name, key in zip(ids, keys, strict=True)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        return [{"gpu": _key(gpu)} for gpu in ask_in_time(AMDGPU, lambda: list_gpus(root), AMDGPU.start_sec)]

    @property
    def resource(self) -> str:
        return f"rocm-{self._config.gpu}"

    async def _find(self) -> None:
        check_versions()
        root = self._config.sys_root
        gpus = {_key(gpu): gpu for gpu in await self._ask(lambda: list_gpus(root), AMDGPU.start_sec)}
        by_address = {gpu.pci_bus_id: gpu for gpu in gpus.values()}
        wanted = (self._config.gpu or "").lower().removeprefix("0x")
        self._gpu = gpus.get(wanted) or by_address.get(wanted)
        if self._gpu is None:
            listed = ", ".join(f"{key} ({gpu.name})" for key, gpu in gpus.items())
            found = f"there are: {listed}" if listed else _why_none(root)
            raise DeviceError(f"{self.name}: this machine has no AMD GPU {self._config.gpu!r}; {found}")
        self._host = read_host()
        self._runtime_fault = await why_not(self._libraries(), _REMEDIES)

    def _inventory(self) -> Inventory:
        gpu = self._opened_gpu
        return self._inventory_of(
            model=gpu.name,
            memory_bytes=gpu.memory_bytes,
            unit_count=gpu.compute_units,
            target=target(gpu),
            labels={"gfx": gpu.gfx, "unique_id": gpu.unique_id},
            facts=_facts(gpu),
        )

    def _worker_spec(self) -> WorkerSpec:
        gpu = self._opened_gpu
        visible = f"GPU-{gpu.unique_id}" if gpu.unique_id else str(gpu.ordinal)
        return WorkerSpec(
            runtime="device_agents.runtimes.gpu:GpuRuntime",
            settings={"device_type": "rocm", "libraries": self._libraries(), "l2_bytes": last_cache_bytes(gpu)},
            environment={"ROCR_VISIBLE_DEVICES": visible},
            devices=("/dev/kfd", "/dev/dri/*"),
            limits_address_space=False,
        )

    def _probe(self) -> Health:
        gpu, root = self._opened_gpu, self._config.sys_root
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

    def _read(self, gpu: AmdGpu) -> Telemetry:
        return read_gpu(gpu, self._config.sys_root)

    def _list_pids(self, gpu: AmdGpu) -> list[int]:
        return compute_pids(gpu, self._config.sys_root)

    def _libraries(self) -> list[str]:
        return [own_library(self._config.tvm_library, "libtvm_runtime_rocm.so")]


def target(gpu: AmdGpu) -> dict[str, object]:
    """Return the TVM target of kernels for a GPU."""
    return {
        "kind": "rocm",
        "mcpu": gpu.gfx,
        "max_shared_memory_per_block": gpu.lds_bytes,
        "max_threads_per_block": _THREADS_PER_BLOCK,
        "max_num_threads": _THREADS_PER_BLOCK,
        "thread_warp_size": gpu.wave_size,
    }


def last_cache_bytes(gpu: AmdGpu) -> int:
    """Return the size of the last cache before memory [bytes], which a flush has to evict."""
    return max(gpu.cache_bytes, _LAST_CACHE_MIB.get(gpu.gfx, 8) * 1024**2)


def _keys_of_entry(root: Path, where: str) -> list[str]:
    try:
        gpus = ask_in_time(AMDGPU, lambda: list_gpus(root), AMDGPU.start_sec)
    except DeviceError as error:
        raise DeviceMissing(f"{where}: {error}") from error
    if not gpus:
        raise DeviceMissing(f"{where}: {_why_none(root)}")
    return [_key(gpu) for gpu in gpus]


def _key(gpu: AmdGpu) -> str:
    """Return the identity of a GPU that survives reboots."""
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


def _facts(gpu: AmdGpu) -> dict[str, str]:
    return {
        "architecture": gpu.gfx,
        "PCI bus": gpu.pci_bus_id,
        "render node": f"renderD{gpu.render_minor}",
        "last cache": f"{last_cache_bytes(gpu) // 1024**2} MiB",
        "unique id": gpu.unique_id,
        "max clock": f"{gpu.max_clock_hz / 1e6:.0f} MHz" if gpu.max_clock_hz else "",
        "link": gpu.link,
    }
