"""Driver for NVIDIA GPUs on the agent's host: one device per GPU or MIG instance, addressed by UUID.

    devices:
      - driver: cuda                            # all GPUs of this machine; those with MIG as their instances
      - driver: cuda
        uuid: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77   # or MIG-..., as `nvidia-smi -L` lists them
        name: bench-h200                        # default: <host>-cuda-<first part of the UUID>
        tvm_library: ~/tvm/libtvm_runtime_cuda.so   # instead of the one in TVM's wheel
        nvml_library: /opt/lib/libnvidia-ml.so.1    # where the linker does not find it

Needs nvidia-ml-py (extra "cuda") and, for TVM's wheel, CUDA 13's runtime: libcudart.so.13 of the toolkit or of the
Python package nvidia-cuda-runtime. Indices move between boots, UUIDs do not. Jetson boards have no NVML worth the name
and are not served by this driver.

https://docs.nvidia.com/deploy/nvml-api/
https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Self

from device_agents.driver import Health, WorkerSpec
from device_agents.drivers.cuda.nvml import Gpu, Nvml
from device_agents.drivers.gpu import ForeignProcesses, GpuDriver, device_ids, own_library, python_package_library
from device_agents.machine.blocking_reads import Source, ask_in_time
from device_agents.machine.host import read_host
from device_agents.runtimes.check import why_not
from fleet.base.config import parse
from fleet.domain.devices import Inventory, Telemetry
from fleet.domain.tvm_versions import check_versions
from fleet.errors import ConfigError, DeviceError, DeviceMissing

_STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory of a kernel that does not request more at launch (TVM's never do); the same on all GPUs."""

_REGISTERS_PER_BLOCK = 65536
_THREADS_PER_BLOCK = 1024
_WARP = 32
"""All three are the same for every compute capability since 5.0:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications"""

_L2_MIB = (
    ("H200", 50), ("H100", 50), ("GH200", 50), ("A100", 40), ("A30", 24), ("A10", 6), ("V100", 6), ("T4", 4),
    ("L40", 96), ("L4", 48), ("RTX 4090", 72), ("RTX 4080", 64), ("RTX 3090", 6), ("RTX 3080", 5), ("RTX 2080", 4),
)  # fmt: skip
"""L2 cache by words of the GPU's name, from NVIDIA's white papers: NVML does not report it."""

_L2_MIB_BY_CAPABILITY = {7: 4, 8: 6, 9: 50, 10: 100, 12: 48}
_PROBE_SEC = 0.5
"""A probe this young is reused: there is one before every candidate."""

NVML = Source(
    name="NVML",
    remedy="the GPU or its driver hangs: look for 'Xid' and 'NVRM' in dmesg, then reset the GPU (nvidia-smi -r) "
    "or the host",
    start_sec=20.0,  # without a persistence daemon it wakes the GPUs one after the other
)

_REMEDIES = {
    "libcuda.so": "that is NVIDIA's driver: install it, or give the container access to it "
    "(with nvidia-container-toolkit: --gpus all)",
    "libcudart.so.13": "install CUDA 13's runtime: pip install nvidia-cuda-runtime, or the CUDA toolkit",
    "cannot open shared object": "install what is missing, or name a library of your own as tvm_library",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaConfig:
    """Settings of one entry; see the module's docstring."""

    uuid: Annotated[
        str | None,
        "GPU-... or MIG-..., as `nvidia-smi -L` lists them; default: all GPUs, those with MIG as their instances.",
    ] = None
    name: Annotated[str | None, "Id of the device; default: <host>-cuda-<first part of the UUID>."] = None
    tvm_library: Annotated[Path | None, "TVM's runtime library for CUDA, instead of the one in TVM's wheel."] = None
    nvml_library: Annotated[Path | None, "NVML, where the linker does not find it."] = None
    sys_root: Annotated[Path, "Where /proc and /sys are found; for tests, which bring recorded trees."] = Path("/")


class CudaDriver(GpuDriver[Gpu]):
    """One GPU, or one MIG instance."""

    kind = "cuda"
    settings = CudaConfig

    def __init__(
        self,
        device_id: str,
        config: CudaConfig,
        host_name: str,
        *,
        source: Source = NVML,
        probe_sec: float = _PROBE_SEC,
        foreign: ForeignProcesses | None = None,
    ) -> None:
        super().__init__(device_id, host_name, source, foreign)
        self._config = config
        self._nvml: Nvml | None = None
        self._probe_sec = probe_sec
        self._start_sec = source.start_sec
        self._complaint = ""
        self._probed_at_sec = -math.inf

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        config = parse(CudaConfig, values, where=where)
        uuids = [config.uuid] if config.uuid is not None else [gpu.uuid for gpu in gpus_of_entry(config, where)]
        ids = device_ids(config.name, f"{host_name}-cuda", [short_uuid(uuid) for uuid in uuids])
        return [cls(name, replace(config, uuid=uuid), host_name) for name, uuid in zip(ids, uuids, strict=True)]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, object]]:
        if not any((root / "proc/driver/nvidia/gpus").glob("*")):
            return []
        return [{"uuid": gpu.uuid} for gpu in ask_in_time(NVML, _list_gpus, NVML.start_sec)]

    @property
    def resource(self) -> str:
        return f"cuda-{self._config.uuid}"

    async def _find(self) -> None:
        check_versions()
        self._gpu = await self._ask(self._take_gpu, self._start_sec)
        self._host = read_host(self._config.sys_root)
        self._runtime_fault = await why_not(self._libraries(), _REMEDIES)

    def _take_gpu(self) -> Gpu:
        self._let_go()  # an earlier open may have finished after its time limit
        self._nvml = Nvml(_library(self._config))
        try:
            gpus = {gpu.uuid: gpu for gpu in self._nvml.gpus()}
            if self._config.uuid in gpus:
                return gpus[self._config.uuid]
            listed = ", ".join(f"{gpu.uuid} ({_model(gpu)})" for gpu in gpus.values()) or "none"
            raise DeviceError(f"{self.name}: this machine has no GPU {self._config.uuid!r}; there are: {listed}")
        except DeviceError:
            self._let_go()
            raise

    def _inventory(self) -> Inventory:
        gpu = self._opened_gpu
        return self._inventory_of(
            model=_model(gpu),
            memory_bytes=gpu.memory_bytes,
            unit_count=gpu.multiprocessors,
            target=target(gpu),
            labels={"sm": _arch(gpu), "uuid": gpu.uuid, "driver": gpu.driver_version, "mig": gpu.mig_profile},
            facts=_facts(gpu),
        )

    def _worker_spec(self) -> WorkerSpec:
        gpu = self._opened_gpu
        return WorkerSpec(
            runtime="device_agents.runtimes.gpu:GpuRuntime",
            settings={"device_type": "cuda", "libraries": self._libraries(), "l2_bytes": l2_bytes(gpu)},
            environment={"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            devices=("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dri/*"),
            limits_address_space=False,
        )

    def _probe(self) -> Health:
        gpu = self._opened_gpu
        now = time.monotonic()
        if self._nvml is not None and now - self._probed_at_sec >= self._probe_sec:
            self._probed_at_sec = now
            found = self._nvml.complaint(gpu.uuid)
            # An Xid is reported once and holds until the GPU is reset, which also ends the agent's hold on the GPU.
            self._complaint = found or (self._complaint if "Xid" in self._complaint else "")
        reason = self._complaint or self._runtime_fault
        return Health(is_healthy=not reason, reason=reason)

    def _read(self, gpu: Gpu) -> Telemetry:
        return self._opened(self._nvml).read(gpu.uuid)

    def _list_pids(self, gpu: Gpu) -> list[int]:
        return self._opened(self._nvml).compute_pids(gpu.uuid)

    def _libraries(self) -> list[str]:
        """Return a worker's libraries: the CUDA runtime, if a Python package contains it, and TVM's CUDA runtime."""
        tvm = own_library(self._config.tvm_library, "libtvm_runtime_cuda.so")
        return [*python_package_library("nvidia", "libcudart.so.13"), tvm]

    def _let_go(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()


def target(gpu: Gpu) -> dict[str, object]:
    """Return the TVM target of kernels for a GPU."""
    return {
        "kind": "cuda",
        "arch": _arch(gpu),
        "max_shared_memory_per_block": _STATIC_SHARED_BYTES,
        "max_threads_per_block": _THREADS_PER_BLOCK,
        "registers_per_block": _REGISTERS_PER_BLOCK,
        "thread_warp_size": _WARP,
        "l2_cache_size_bytes": l2_bytes(gpu),
    }


def l2_bytes(gpu: Gpu) -> int:
    """Return the size of the whole GPU's L2 cache [bytes], by its name, else by its generation."""
    mib = next((size for word, size in _L2_MIB if re.search(rf"\b{word}\b", gpu.name)), 0)
    return (mib or _L2_MIB_BY_CAPABILITY.get(gpu.capability[0], 6)) * 1024**2


def short_uuid(uuid: str) -> str:
    """Return the part of a UUID that names a device: "GPU-5d5ba0d6-d33d-..." -> "5d5ba0d6"."""
    words = re.split(r"[-/]", uuid.removeprefix("GPU-").removeprefix("MIG-").removeprefix("GPU-"))
    return words[0].lower() or "gpu"


def gpus_of_entry(config: CudaConfig, where: str, source: Source = NVML) -> list[Gpu]:
    """Return all GPUs of this machine.

    Raises:
        DeviceMissing: there is none, or NVML does not tell.
    """
    try:
        gpus = ask_in_time(source, lambda: _list_gpus(_library(config)), source.start_sec)
    except (ConfigError, DeviceError) as error:
        raise DeviceMissing(f"{where}: {error}") from error
    if not gpus:
        raise DeviceMissing(f"{where}: the NVIDIA driver is here, but lists no GPU; look at nvidia-smi -L and dmesg")
    return gpus


def _list_gpus(library: str = "") -> list[Gpu]:
    nvml = Nvml(library)
    try:
        return nvml.gpus()
    finally:
        nvml.close()


def _library(config: CudaConfig) -> str:
    return str(config.nvml_library or "")


def _arch(gpu: Gpu) -> str:
    major, minor = gpu.capability
    return f"sm_{major}{minor}"


def _model(gpu: Gpu) -> str:
    return f"{gpu.name} MIG {gpu.mig_profile}" if gpu.mig_profile else gpu.name


def _facts(gpu: Gpu) -> dict[str, str]:
    return {
        "uuid": gpu.uuid,
        "PCI bus": gpu.pci_bus_id,
        "driver": f"{gpu.driver_version}, for CUDA up to {gpu.cuda_version}",
        "compute capability": ".".join(map(str, gpu.capability)),
        "L2 cache": f"{l2_bytes(gpu) // 1024**2} MiB",
        "max clock": f"{gpu.max_clock_hz / 1e6:.0f} MHz" if gpu.max_clock_hz else "",
        "MIG profile": gpu.mig_profile,
    }
