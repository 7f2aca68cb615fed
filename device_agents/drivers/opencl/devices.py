"""Lists the OpenCL devices of this machine. Vendors' drivers start threads and may crash, so the agent asks a child:

    python -m device_agents.drivers.opencl.devices   # prints a JSON list; needs libOpenCL.so.1 and nothing else

Devices are in the order of their platforms, then sorted by type, GPUs first and CPUs last. The order is the same as in
runtimes/opencl/plugin/workspace.cc, so that an index means the same device on both sides.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from fleet.errors import ConfigError, DeviceError, DeviceMissing

LOADER = "libOpenCL.so.1"
_TIMEOUT_SEC = 30.0
NO_LOADER = (
    f"{LOADER} is not installed, the loader of OpenCL drivers; on Debian: apt install ocl-icd-libopencl1, and the "
    "driver of the device's vendor, or pocl-opencl-icd for the CPU"
)
NO_DRIVER = (
    "no OpenCL driver is installed here (/etc/OpenCL/vendors names none that works); install the device vendor's, or "
    "pocl-opencl-icd for the CPU, and look with: clinfo -l"
)

_ALL_TYPES = 0xFFFFFFFF
_TYPES = ((4, "gpu"), (8, "accelerator"), (16, "custom"), (2, "cpu"))
"""Bits of CL_DEVICE_TYPE, in the order of devices."""

_PLATFORM_NAME = 0x0902
_TYPE, _COMPUTE_UNITS, _WORK_GROUP_SIZE, _CLOCK_MHZ = 0x1000, 0x1002, 0x1004, 0x100C
_LARGEST_BUFFER, _CACHE_BYTES, _MEMORY_BYTES, _LOCAL_BYTES = 0x1010, 0x101E, 0x101F, 0x1023
_NAME, _VENDOR, _DRIVER_VERSION, _VERSION, _EXTENSIONS = 0x102B, 0x102C, 0x102D, 0x102F, 0x1030
_PCI_BUS_KHR, _PCI_BUS_NVIDIA, _PCI_SLOT_NVIDIA, _TOPOLOGY_AMD = 0x410F, 0x4008, 0x4009, 0x4037
"""Queries of clGetPlatformInfo and clGetDeviceInfo, from the registry of Khronos:
https://registry.khronos.org/OpenCL/api/2.1/cl.h and .../extensions of cl_khr_pci_bus_info and the two vendors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClDevice:
    """One device as its driver describes it."""

    index: int
    """Index of TVM's `opencl` device."""

    name: str
    platform: str
    vendor: str
    type: str
    """ "gpu", "accelerator", "custom" or "cpu"."""

    version: str
    """ "OpenCL 3.0 ..."."""

    driver_version: str
    compute_units: int
    work_group_size: int
    clock_mhz: int
    memory_bytes: int
    largest_buffer_bytes: int
    local_memory_bytes: int
    cache_bytes: int
    extensions: tuple[str, ...]
    pci_address: str
    """ "0000:3b:00.0", or empty where the driver does not tell."""

    @property
    def has_fp16(self) -> bool:
        """True if kernels can compute in half precision."""
        return "cl_khr_fp16" in self.extensions


def find_opencl_devices(
    command: Sequence[str] = (sys.executable, "-m", "device_agents.drivers.opencl.devices"),
) -> list[OpenClDevice]:
    """List the devices, in a child process.

    Raises:
        DeviceMissing: there is no loader, or no driver.
        DeviceError: a driver crashed or hung.
    """
    try:
        child = subprocess.run(list(command), capture_output=True, timeout=_TIMEOUT_SEC, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"listing the OpenCL devices took over {_TIMEOUT_SEC:.0f} s; try: clinfo -l") from error
    if child.returncode != 0:
        said = child.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        raise DeviceError(f"an OpenCL driver fails while its devices are listed: {said[0]}; try: clinfo -l")
    answer = json.loads(child.stdout)
    if problem := answer.get("problem"):
        raise DeviceMissing(problem)
    return [OpenClDevice(**{**device, "extensions": tuple(device["extensions"])}) for device in answer["devices"]]


def list_devices() -> list[OpenClDevice]:
    """List the devices in this process, which loads the vendors' drivers for good.

    Raises:
        DeviceMissing: there is no loader, or no driver.
    """
    try:
        library = ctypes.CDLL(LOADER)
    except OSError as error:
        raise DeviceMissing(NO_LOADER) from error
    found = [_read(library, *pair) for pair in _handles(library)]
    if not found:
        raise DeviceMissing(NO_DRIVER)
    order = [name for _, name in _TYPES]
    found.sort(key=lambda device: order.index(device.type))
    return [replace(device, index=index) for index, device in enumerate(found)]


def _handles(library: ctypes.CDLL) -> list[tuple[int, int]]:
    """Return all pairs of platform and device."""
    platforms = _ids(lambda count, ids, total: library.clGetPlatformIDs(count, ids, total))
    return [
        (platform, device)
        for platform in platforms
        for device in _ids(
            lambda count, ids, total, platform=platform: library.clGetDeviceIDs(
                ctypes.c_void_p(platform), ctypes.c_uint64(_ALL_TYPES), count, ids, total
            )
        )
    ]


def _ids(query: Callable[..., int]) -> list[int]:
    total = ctypes.c_uint(0)
    if query(0, None, ctypes.byref(total)) != 0 or total.value == 0:
        return []
    ids = (ctypes.c_void_p * total.value)()
    return [number for number in ids if number] if query(total.value, ids, None) == 0 else []


def _read(library: ctypes.CDLL, platform: int, device: int) -> OpenClDevice:
    def content(what: int) -> bytes:
        return _content(library.clGetDeviceInfo, device, what)

    def number(what: int) -> int:
        return int.from_bytes(content(what), "little")

    def text(what: int) -> str:
        return _text(content(what))

    bits = number(_TYPE)
    extensions = tuple(text(_EXTENSIONS).split())
    return OpenClDevice(
        index=0,  # set after sorting
        name=text(_NAME),
        platform=_text(_content(library.clGetPlatformInfo, platform, _PLATFORM_NAME)),
        vendor=text(_VENDOR),
        type=next((name for bit, name in _TYPES if bits & bit), "custom"),
        version=text(_VERSION),
        driver_version=text(_DRIVER_VERSION),
        compute_units=number(_COMPUTE_UNITS),
        work_group_size=number(_WORK_GROUP_SIZE),
        clock_mhz=number(_CLOCK_MHZ),
        memory_bytes=number(_MEMORY_BYTES),
        largest_buffer_bytes=number(_LARGEST_BUFFER),
        local_memory_bytes=number(_LOCAL_BYTES),
        cache_bytes=number(_CACHE_BYTES),
        extensions=extensions,
        pci_address=_pci_address(extensions, content),
    )


def _pci_address(extensions: Sequence[str], content: Callable[[int], bytes]) -> str:
    if "cl_khr_pci_bus_info" in extensions and len(raw := content(_PCI_BUS_KHR)) == 16:
        domain, bus, slot, function = (int.from_bytes(raw[at : at + 4], "little") for at in range(0, 16, 4))
    elif "cl_nv_device_attribute_query" in extensions and content(_PCI_BUS_NVIDIA):
        slot_id = int.from_bytes(content(_PCI_SLOT_NVIDIA), "little")
        domain, bus = 0, int.from_bytes(content(_PCI_BUS_NVIDIA), "little")
        slot, function = slot_id >> 3, slot_id & 7
    elif "cl_amd_device_attribute_query" in extensions and len(raw := content(_TOPOLOGY_AMD)) == 24:
        domain, bus, slot, function = 0, raw[21], raw[22], raw[23]
    else:
        return ""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"


def _content(query: Callable[..., int], handle: int, what: int) -> bytes:
    """Return the answer to a query; empty if the driver does not support it."""
    size = ctypes.c_size_t(0)
    if query(ctypes.c_void_p(handle), ctypes.c_uint(what), ctypes.c_size_t(0), None, ctypes.byref(size)) != 0:
        return b""
    buffer = ctypes.create_string_buffer(size.value)
    if query(ctypes.c_void_p(handle), ctypes.c_uint(what), size, buffer, None) != 0:
        return b""
    return buffer.raw


def _text(content: bytes) -> str:
    return content.partition(b"\0")[0].decode(errors="replace").strip()


def main() -> int:
    """Print the answer for `find_opencl_devices`. Output of drivers is redirected to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        answer: dict[str, object] = {"devices": [asdict(device) for device in list_devices()]}
    except ConfigError as error:
        answer = {"problem": str(error)}
    with os.fdopen(answers, "w") as file:
        file.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
