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
from device_agents.gpu_host import ForeignProcesses, gpu_labels, host_target, own_library, python_package_library
from device_agents.host import Host, read_host
from device_agents.nvml import Gpu, Nvml
from device_agents.runtime_check import why_not
from fleet.config import parse
from fleet.errors import ConfigError, DeviceError, DeviceMissing
from fleet.tvm_versions import check_versions, tvm_version
from fleet.v1 import device_pb2
from fleet.wire import timestamp

_STATIC_SHARED_BYTES = 48 * 1024
"""Shared memory that a kernel gets without asking for more at its launch, as TVM's kernels do; the same on all GPUs."""

_REGISTERS_PER_BLOCK = 65536
_THREADS_PER_BLOCK = 1024
_WARP = 32
"""All three are the same for every compute capability since 5.0:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/#features-and-technical-specifications"""

_L2_MIB = (
    ("H200", 50), ("H100", 50), ("GH200", 50), ("A100", 40), ("A30", 24), ("A10", 6), ("V100", 6), ("T4", 4),
    ("L40", 96), ("L4", 48), ("RTX 4090", 72), ("RTX 4080", 64), ("RTX 3090", 6), ("RTX 3080", 5), ("RTX 2080", 4),
)  # fmt: skip
"""By words of the name, from NVIDIA's architecture white papers; NVML does not tell it. The worker asks the GPU."""

_L2_MIB_BY_CAPABILITY = {7: 4, 8: 6, 9: 50, 10: 100, 12: 48}
_PROBE_SEC = 0.5
"""A probe this young is given again: it is asked for before every candidate."""

_NVML = Source(
    name="NVML",
    remedy="the GPU or its driver hangs: look for 'Xid' and 'NVRM' in dmesg, then reset the GPU (nvidia-smi -r) "
    "or the host",
)
_START_SEC = 20.0
"""Of NVML: it wakes one GPU after the other where no persistence daemon keeps them awake."""

_REMEDIES = {
    "libcuda.so": "that is NVIDIA's driver: install it, or give the container access to it "
    "(with nvidia-container-toolkit: --gpus all)",
    "libcudart.so.13": "install CUDA 13's runtime: pip install nvidia-cuda-runtime, or the CUDA toolkit",
    "cannot open shared object": "install what is missing, or name a library of your own as tvm_library",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaConfig:
    """Settings of one entry; see the module's docstring."""

    uuid: str | None = None
    name: str | None = None
    tvm_library: Path | None = None
    nvml_library: Path | None = None
    sys_root: Path = Path("/")
    """Where /proc and /sys of the host are found; tests bring recorded trees."""


class CudaDriver(Driver):
    """One GPU, or one MIG instance."""

    kind = "cuda"
    preload = "device_agents.gpu_runtime"
    source = _NVML

    def __init__(self, device_id: str, config: CudaConfig, host_name: str) -> None:
        super().__init__(device_id)
        self._config = config
        self._host_name = host_name
        self._nvml: Nvml | None = None
        self._gpu: Gpu | None = None
        self._host: Host | None = None
        self._foreign = ForeignProcesses()
        self._runtime_fault = ""
        self._complaint = ""
        self._probed_at_sec = -_PROBE_SEC

    @classmethod
    def from_config(cls, values: Mapping[str, Any], *, where: str, host_name: str) -> list[Self]:
        config = parse(CudaConfig, values, where=where)
        if config.uuid is not None:
            return [cls(config.name or f"{host_name}-cuda-{short_uuid(config.uuid)}", config, host_name)]
        gpus = _gpus_of_entry(config, where)
        base = config.name or f"{host_name}-cuda"
        is_named = config.name is not None and len(gpus) == 1
        return [
            cls(base if is_named else f"{base}-{short_uuid(gpu.uuid)}", replace(config, uuid=gpu.uuid), host_name)
            for gpu in gpus
        ]

    @classmethod
    def find(cls, root: Path = Path("/")) -> list[dict[str, Any]]:
        if not any((root / "proc/driver/nvidia/gpus").glob("*")):
            return []
        return [{"uuid": gpu.uuid} for gpu in ask_in_time(_NVML, _list_gpus, _START_SEC)]

    @property
    def resource(self) -> str:
        return f"cuda-{self._config.uuid}"

    async def _find(self) -> None:
        check_versions()
        self._gpu = await self._ask(self._take_gpu, _START_SEC)
        self._host = read_host(self._config.sys_root)
        self._runtime_fault = await why_not(self._libraries(), _REMEDIES)

    def _take_gpu(self) -> Gpu:
        self._let_go()  # what an opening that came too late left
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

    def _inventory(self) -> device_pb2.Inventory:
        gpu, host = self._found()
        labels = {
            **gpu_labels(host, self._host_name, _model(gpu), gpu.memory_bytes),
            "sm": _arch(gpu),
            "uuid": gpu.uuid,
            "driver": gpu.driver_version,
        }
        if gpu.mig_profile:
            labels["mig"] = gpu.mig_profile
        return device_pb2.Inventory(
            kind=self.kind,
            labels=labels,
            target_json=json.dumps(target(gpu, host)),
            device_model=_model(gpu),
            host_fingerprint=host.fingerprint,
            memory_bytes=gpu.memory_bytes,
            core_count=max(1, gpu.multiprocessors),
            tvm_version=tvm_version() or "",
            facts=_facts(gpu, host),
        )

    def _worker_spec(self) -> WorkerSpec:
        gpu, _ = self._found()
        return WorkerSpec(
            runtime="device_agents.gpu_runtime:GpuRuntime",
            settings={"device_type": "cuda", "libraries": self._libraries(), "l2_bytes": l2_bytes(gpu)},
            environment={"CUDA_VISIBLE_DEVICES": gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            limits_address_space=False,
        )

    def _probe(self) -> Health:
        gpu, _ = self._found()
        now = time.monotonic()
        if self._nvml is not None and now - self._probed_at_sec >= _PROBE_SEC:
            self._probed_at_sec = now
            found = self._nvml.complaint(gpu.uuid)
            # An Xid is told once and stays true until the GPU is reset, which ends the agent's hold on it, too.
            self._complaint = found or (self._complaint if "Xid" in self._complaint else "")
        reason = self._complaint or self._runtime_fault
        return Health(is_healthy=not reason, reason=reason)

    def _telemetry(self) -> device_pb2.Telemetry:
        gpu, _ = self._found()
        telemetry = device_pb2.Telemetry(read_at=timestamp(time.time()), load_1min=os.getloadavg()[0])
        nvml = self._nvml
        if nvml is None:
            return telemetry
        try:
            reading = nvml.read(gpu.uuid)
            foreign = self._foreign.count(lambda: nvml.compute_pids(gpu.uuid))
        except DeviceError:
            return telemetry  # the probe says what is wrong
        for field, value in (
            ("temp_c", reading.temp_c),
            ("freq_hz", reading.freq_hz),
            ("power_w", reading.power_w),
            ("memory_available_bytes", reading.free_bytes),
            ("foreign_processes", foreign),
        ):
            if value is not None:
                setattr(telemetry, field, value)
        telemetry.throttle_reasons.extend(reading.throttle_reasons)
        return telemetry

    def _libraries(self) -> list[str]:
        """Return what a worker loads: the CUDA runtime where a Python package brings it, and TVM's runtime for it."""
        tvm = own_library(self._config.tvm_library, "libtvm_runtime_cuda.so")
        return [*python_package_library("nvidia", "libcudart.so.13"), tvm]

    def _found(self) -> tuple[Gpu, Host]:
        if self._gpu is None or self._host is None:
            raise DeviceError(f"{self.name} is not open yet")
        return self._gpu, self._host

    def _let_go(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()


def target(gpu: Gpu, host: Host) -> dict[str, Any]:
    """Return the TVM target of kernels for a GPU, with the host that launches them."""
    return {
        "kind": "cuda",
        "arch": _arch(gpu),
        "max_shared_memory_per_block": _STATIC_SHARED_BYTES,
        "max_threads_per_block": _THREADS_PER_BLOCK,
        "registers_per_block": _REGISTERS_PER_BLOCK,
        "thread_warp_size": _WARP,
        "l2_cache_size_bytes": l2_bytes(gpu),
        "host": host_target(host),
    }


def l2_bytes(gpu: Gpu) -> int:
    """Return the size of the whole GPU's L2 cache [bytes], by its name, else by its generation."""
    mib = next((size for word, size in _L2_MIB if re.search(rf"\b{word}\b", gpu.name)), 0)
    return (mib or _L2_MIB_BY_CAPABILITY.get(gpu.capability[0], 6)) * 1024**2


def short_uuid(uuid: str) -> str:
    """Return the part of a UUID that names a device: "GPU-5d5ba0d6-d33d-..." -> "5d5ba0d6"."""
    words = re.split(r"[-/]", uuid.removeprefix("GPU-").removeprefix("MIG-").removeprefix("GPU-"))
    return words[0].lower() or "gpu"


def _gpus_of_entry(config: CudaConfig, where: str) -> list[Gpu]:
    try:
        gpus = ask_in_time(_NVML, lambda: _list_gpus(_library(config)), _START_SEC)
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


def _facts(gpu: Gpu, host: Host) -> dict[str, str]:
    facts = {
        "uuid": gpu.uuid,
        "PCI bus": gpu.pci_bus_id,
        "driver": f"{gpu.driver_version}, for CUDA up to {gpu.cuda_version}",
        "compute capability": ".".join(map(str, gpu.capability)),
        "L2 cache": f"{l2_bytes(gpu) // 1024**2} MiB",
        "host CPU": host.model,
    }
    if gpu.max_clock_hz:
        facts["max clock"] = f"{gpu.max_clock_hz / 1e6:.0f} MHz"
    if gpu.mig_profile:
        facts["MIG profile"] = gpu.mig_profile
    return facts
