"""Access to NVML, NVIDIA's management library: lists GPUs and MIG instances, and reads their state.

NVML makes no CUDA context, so the agent may use it. Readings that a GPU does not report are None: boards differ.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from fleet.domain.devices import Telemetry
from fleet.errors import ConfigError, DeviceError

T = TypeVar("T")

_INSTALL = "install the Python package nvidia-ml-py, as with: pip install 'tvm-fleet[cuda]'"
_NO_DRIVER = "install NVIDIA's driver (nvidia-smi then lists the GPUs), or give the container access to them"

_LOST = "look for 'Xid' in dmesg, then reset the GPU (nvidia-smi -r) or the host"

_THROTTLE_WORDS = {
    0x4: "power-cap",
    0x8: "hardware-slowdown",
    0x10: "sync-boost",
    0x20: "thermal",
    0x40: "thermal-hardware",
    0x80: "power-brake",
}
"""Bits of nvmlClocksEventReasons. Not throttling: idle (0x1), clocks that a user set (0x2), a display (0x100)."""

_SICK_XIDS = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    64: "a memory row or page could not be retired",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained ECC error",
    119: "the GPU's system processor does not answer",
    120: "error of the GPU's system processor",
    140: "unrecovered ECC error",
}
"""Xid errors that mean broken hardware. Others, such as 13 and 31, are a kernel's fault.
https://docs.nvidia.com/deploy/xid-errors/"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of it."""

    uuid: str
    """ "GPU-..." or "MIG-...", a value for CUDA_VISIBLE_DEVICES."""

    name: str
    """ "NVIDIA H200"."""

    pci_bus_id: str
    capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    """0: not known."""

    max_clock_hz: float | None
    driver_version: str
    cuda_version: str
    """Newest CUDA version that the driver supports."""

    mig_profile: str = ""
    """ "1g.5gb"; empty for a whole GPU."""


class _Event(Protocol):
    eventData: int  # noqa: N815 - NVML's name


class Nvml:
    """The library, loaded and initialised. One process may hold several; each counts."""

    def __init__(self, library: str = "") -> None:
        """Load the library.

        Args:
            library: its path, if the linker does not find it.

        Raises:
            ConfigError: the Python package is not installed.
            DeviceError: there is no driver, it cannot be used, or its version differs from the library's.
        """
        try:
            import pynvml
        except ImportError as error:
            raise ConfigError(f"GPUs of NVIDIA are read through NVML: {_INSTALL}") from error
        self._nvml: Any = pynvml
        self._watched: dict[str, object] = {}
        self._found: dict[str, tuple[object, object]] = {}
        try:
            if library and pynvml.nvmlLib is None:
                pynvml.nvmlLib = ctypes.CDLL(library)
            pynvml.nvmlInit()
        except OSError as error:
            raise DeviceError(f"NVML cannot be loaded from {library}: {error}") from error
        except pynvml.NVMLError as error:
            raise DeviceError(_why_not_usable(pynvml, error)) from error
        self._is_open = True

    def close(self) -> None:
        """Release the library. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        with suppress(self._nvml.NVMLError):
            for events in self._watched.values():
                self._nvml.nvmlEventSetFree(events)
            self._nvml.nvmlShutdown()

    def gpus(self) -> list[Gpu]:
        """Return all GPUs; a GPU with MIG is replaced by its instances.

        Raises:
            DeviceError: the driver does not answer.
        """
        nvml = self._nvml
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            return [self._describe(part, parent) for parent in handles for part in self._instances(parent) or [parent]]
        except nvml.NVMLError as error:
            raise DeviceError(f"NVML does not list the GPUs: {error}; look at nvidia-smi") from error

    def read(self, uuid: str) -> Telemetry:
        """Return the current readings. For a MIG instance, clocks and temperature are those of its GPU.

        Raises:
            DeviceError: there is no such GPU any more.
        """
        nvml = self._nvml
        handle, parent = self._handles(uuid)
        memory = self._query(nvml.nvmlDeviceGetMemoryInfo, handle)
        milliwatts = self._query(nvml.nvmlDeviceGetPowerUsage, parent)
        mhz = self._query(nvml.nvmlDeviceGetClockInfo, parent, nvml.NVML_CLOCK_SM)
        celsius = self._query(nvml.nvmlDeviceGetTemperature, parent, nvml.NVML_TEMPERATURE_GPU)
        return Telemetry(
            temp_c=None if celsius is None else float(celsius),
            freq_hz=None if mhz is None else mhz * 1e6,
            power_w=None if milliwatts is None else milliwatts / 1000,
            memory_available_bytes=None if memory is None else int(memory.free),
            throttle_reasons=throttle_words(self._throttle_bits(parent)),
        )

    def compute_pids(self, uuid: str) -> list[int]:
        """Return the ids of the device's compute processes."""
        handle, _ = self._handles(uuid)
        return [
            int(process.pid) for process in self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
        ]

    def complaint(self, uuid: str) -> str:
        """Return why the GPU cannot be used, in a sentence; empty if it can."""
        nvml = self._nvml
        try:
            _, parent = self._handles(uuid)
            nvml.nvmlDeviceGetTemperature(parent, nvml.NVML_TEMPERATURE_GPU)
        except DeviceError as error:
            return str(error)
        except nvml.NVMLError as error:
            self._found.pop(uuid, None)
            if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NO_PERMISSION):
                return f"{uuid} does not answer: {error}; {_LOST}"
            return ""
        rows = self._query(nvml.nvmlDeviceGetRemappedRows, parent)
        if rows is not None and rows[3]:
            return f"{uuid}: remapping a bad memory row failed; the GPU should be replaced"
        if rows is not None and rows[2]:
            return f"{uuid}: a bad memory row waits to be remapped; reset the GPU (nvidia-smi -r) or the host"
        if self._query(nvml.nvmlDeviceGetRetiredPagesPendingStatus, parent):
            return f"{uuid}: bad memory pages wait to be retired; reboot the host"
        return self._xid_complaint(uuid, parent)

    def _handles(self, uuid: str) -> tuple[object, object]:
        """Return the handles of the device and of its GPU; they differ for a MIG instance."""
        nvml = self._nvml
        found = self._found.get(uuid)
        if found is not None:
            return found
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            is_part = uuid.startswith("MIG-")
            parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_part else handle
        except nvml.NVMLError as error:
            raise DeviceError(f"{uuid} does not answer: {error}; {_LOST}") from error
        self._found[uuid] = (handle, parent)
        return handle, parent

    def _instances(self, parent: object) -> list[object]:
        nvml = self._nvml
        mode = self._query(nvml.nvmlDeviceGetMigMode, parent)
        if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        count = self._query(nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0
        found = (self._query(nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, index) for index in range(count))
        return [handle for handle in found if handle is not None]

    def _describe(self, handle: object, parent: object) -> Gpu:
        nvml = self._nvml
        is_whole = handle is parent
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(parent))
        name = str(nvml.nvmlDeviceGetName(handle))
        attributes = None if is_whole else self._query(nvml.nvmlDeviceGetAttributes, handle)
        cores = self._query(nvml.nvmlDeviceGetNumGpuCores, parent) if is_whole else None
        mhz = self._query(nvml.nvmlDeviceGetMaxClockInfo, parent, nvml.NVML_CLOCK_SM)
        cuda = self._query(nvml.nvmlSystemGetCudaDriverVersion) or 0
        return Gpu(
            uuid=str(nvml.nvmlDeviceGetUUID(handle)),
            name=str(nvml.nvmlDeviceGetName(parent)),
            pci_bus_id=str(nvml.nvmlDeviceGetPciInfo(parent).busId).lower(),
            capability=(int(capability[0]), int(capability[1])),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            multiprocessors=int(attributes.multiprocessorCount)
            if attributes is not None
            else (cores or 0) // cores_per_multiprocessor(int(capability[0]), int(capability[1])),
            max_clock_hz=None if mhz is None else mhz * 1e6,
            driver_version=str(nvml.nvmlSystemGetDriverVersion()),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            mig_profile="" if is_whole else name.rpartition(" MIG ")[2].strip(),
        )

    def _throttle_bits(self, parent: object) -> int:
        nvml = self._nvml
        found = self._query(nvml.nvmlDeviceGetCurrentClocksEventReasons, parent)
        if found is None:  # called differently before driver 535
            found = self._query(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, parent)
        return int(found or 0)

    def _xid_complaint(self, uuid: str, parent: object) -> str:
        """Return the last hardware error that the driver reported since this library was opened."""
        nvml = self._nvml
        with suppress(nvml.NVMLError):
            events = self._watched.get(uuid)
            if events is None:
                events = nvml.nvmlEventSetCreate()
                self._watched[uuid] = events
                nvml.nvmlDeviceRegisterEvents(parent, nvml.nvmlEventTypeXidCriticalError, events)
            for event in self._waiting_events(events):
                xid = int(event.eventData)
                if xid in _SICK_XIDS:
                    return f"{uuid}: Xid {xid}, {_SICK_XIDS[xid]}; reset the GPU or the host, then restart the agent"
        return ""

    def _waiting_events(self, events: object) -> Iterator[_Event]:
        while True:
            try:
                yield self._nvml.nvmlEventSetWait(events, 0)
            except self._nvml.NVMLError_Timeout:
                return

    def _query(self, ask: Callable[..., T], *arguments: object) -> T | None:
        """Return the result of a query, or None if the device or driver does not support it."""
        try:
            return ask(*arguments)
        except self._nvml.NVMLError:
            return None


def throttle_words(bits: int) -> tuple[str, ...]:
    """Return the reasons for throttling."""
    return tuple(word for bit, word in _THROTTLE_WORDS.items() if bits & bit)


def cores_per_multiprocessor(major: int, minor: int) -> int:
    """Return how many FP32 units a multiprocessor of this compute capability has.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#arithmetic-instructions
    """
    if (major, minor) in ((6, 0), (8, 0)) or major == 7:
        return 64
    return 128


def _why_not_usable(nvml: Any, error: Any) -> str:
    texts = {
        nvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"there is no NVIDIA driver on this machine; {_NO_DRIVER}",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is installed, but its kernel module is not loaded: "
        "run nvidia-smi, or reboot after a driver update",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "NVML is of another version than the kernel module: reboot after the "
        "driver update",
        nvml.NVML_ERROR_NO_PERMISSION: "this user may not use the GPUs: look at the permissions of /dev/nvidia*",
        nvml.NVML_ERROR_GPU_IS_LOST: "a GPU has fallen off the bus: look for 'Xid' in dmesg, and reset the host",
    }
    return texts.get(error.value, f"NVML does not start: {error}; look at nvidia-smi")
