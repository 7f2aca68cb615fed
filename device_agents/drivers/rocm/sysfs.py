"""AMD GPUs in sysfs: compute units from KFD's topology; clocks, temperature and memory from the DRM device.

Only reads files; values that a card lacks are None. `root` is "/" except in tests, which bring recorded trees.

https://docs.kernel.org/gpu/amdgpu/thermal.html (hwmon, gpu_metrics, pp_dpm_sclk)
https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_topology.c (the topology's properties)
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from device_agents.machine.files import read_head, read_int, read_word
from fleet.domain.devices import Telemetry

_NODES = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"
_NAMES = "usr/share/libdrm/amdgpu.ids"
_NO_UNIQUE_ID = (0, 0xFFFFFFFFFFFFFFFF)

_METRICS_1_3 = struct.Struct("<HBB108xQ")
"""Header and last field (indep_throttle_status) of gpu_metrics_v1_3 in the kernel's kgd_pp_interface.h."""

_THROTTLE_WORDS = {"power-cap": 0x00000000000000FF, "current-cap": 0x0000000000FF0000, "thermal": 0x0000FFFF00000000}
"""Groups of the bits SMU_THROTTLER_* in the kernel's amdgpu_smu.h: power 0-7, current 16-23, temperature 32-47."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """One GPU of KFD's topology."""

    ordinal: int
    """Its index among the GPUs, as counted by ROCR_VISIBLE_DEVICES."""

    kfd_id: int
    """KFD's gpu_id, which names it in the list of processes."""

    gfx: str
    """LLVM's name of the architecture: "gfx90a"."""

    unique_id: str
    """16 hexadecimal digits; empty: the card has none."""

    name: str
    pci_bus_id: str
    render_minor: int
    compute_units: int
    wave_size: int
    lds_bytes: int
    memory_bytes: int
    cache_bytes: int
    """Largest single cache that the topology lists; 0: none."""

    max_clock_hz: float
    link: str
    """ "16.0 GT/s PCIe x16", or empty."""


def list_gpus(root: Path = Path("/")) -> list[AmdGpu]:
    """Return the GPUs of the topology, in its order."""
    nodes = sorted((root / _NODES).glob("[0-9]*"), key=lambda path: int(path.name))
    found = [(node, read_int(node / "gpu_id") or 0) for node in nodes]
    gpus = [(node, kfd_id) for node, kfd_id in found if kfd_id]
    return [_describe(root, node, kfd_id, ordinal) for ordinal, (node, kfd_id) in enumerate(gpus)]


def read_gpu(gpu: AmdGpu, root: Path = Path("/")) -> Telemetry:
    """Return the current readings."""
    device = _device(root, gpu.render_minor)
    hwmon = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device / "hwmon")
    temps = [milli for path in hwmon.glob("temp*_input") if (milli := read_int(path)) is not None]
    hertz = read_int(hwmon / "freq1_input")
    microwatts = read_int(hwmon / "power1_average")
    if microwatts is None:
        microwatts = read_int(hwmon / "power1_input")
    used = read_int(device / "mem_info_vram_used")
    return Telemetry(
        temp_c=max(temps) / 1000 if temps else None,
        freq_hz=float(hertz) if hertz is not None else current_dpm_hz(read_word(device / "pp_dpm_sclk")),
        power_w=None if microwatts is None else microwatts / 1e6,
        memory_available_bytes=None if used is None else max(0, gpu.memory_bytes - used),
        throttle_reasons=throttle_words(read_head(device / "gpu_metrics")),
    )


def compute_pids(gpu: AmdGpu, root: Path = Path("/")) -> list[int]:
    """Return the ids of processes with compute memory on the GPU."""
    holding = (root / _PROCESSES).glob(f"[0-9]*/vram_{gpu.kfd_id}")
    return [int(path.parent.name) for path in holding if (read_int(path) or 0) > 0]


def device_files(gpu: AmdGpu, root: Path = Path("/")) -> list[Path]:
    """Return the device files that computing on the GPU requires."""
    return [root / "dev/kfd", root / f"dev/dri/renderD{gpu.render_minor}"]


def unusable_file(gpu: AmdGpu, root: Path = Path("/")) -> Path | None:
    """Return the first of these files that is missing or that this user may not open."""
    return next((path for path in device_files(gpu, root) if not os.access(path, os.R_OK | os.W_OK)), None)


def is_hung(gpu: AmdGpu, root: Path = Path("/")) -> bool:
    """Tell whether the kernel has given up on the card: it has disappeared, or reads return all ones."""
    vendor = read_word(_device(root, gpu.render_minor) / "vendor")
    return vendor is None or vendor == "0xffff"


def gfx_name(version: int) -> str:
    """Return the architecture of KFD's gfx_target_version, which is decimal: 90010 -> "gfx90a"."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def current_dpm_hz(text: str | None) -> float | None:
    """Return the clock that pp_dpm_sclk marks with a star: "1: 1700Mhz *"."""
    for line in (text or "").splitlines():
        words = line.split()
        if words[-1:] == ["*"] and len(words) >= 3 and words[1].lower().endswith("mhz"):
            return float(words[1][:-3]) * 1e6
    return None


def throttle_words(metrics: bytes | None) -> tuple[str, ...]:
    """Return the reasons for throttling, from gpu_metrics version 1.3; other versions report none."""
    if metrics is None or len(metrics) < _METRICS_1_3.size:
        return ()
    _, major, minor, status = _METRICS_1_3.unpack_from(metrics)
    if (major, minor) != (1, 3) or status == 0xFFFFFFFFFFFFFFFF:
        return ()
    return tuple(word for word, bits in _THROTTLE_WORDS.items() if status & bits)


def _describe(root: Path, node: Path, kfd_id: int, ordinal: int) -> AmdGpu:
    properties = _properties(node / "properties")
    minor = properties.get("drm_render_minor", 0)
    device = _device(root, minor)
    location, unique = properties.get("location_id", 0), properties.get("unique_id", 0)
    gfx = gfx_name(properties.get("gfx_target_version", 0))
    device_id = properties.get("device_id", 0)
    banks = (_properties(path) for path in sorted((node / "mem_banks").glob("*/properties")))
    vram = read_int(device / "mem_info_vram_total") or sum(bank.get("size_in_bytes", 0) for bank in banks)
    caches = [_properties(path) for path in (node / "caches").glob("*/properties")]
    speed, width = read_word(device / "current_link_speed"), read_word(device / "current_link_width")
    return AmdGpu(
        ordinal=ordinal,
        kfd_id=kfd_id,
        gfx=gfx,
        unique_id="" if unique in _NO_UNIQUE_ID else f"{unique:016x}",
        name=_product(root, device, device_id) or f"AMD GPU {gfx} (device 0x{device_id:04x})",
        pci_bus_id=_pci_address(properties.get("domain", 0), location),
        render_minor=minor,
        compute_units=properties.get("simd_count", 0) // max(1, properties.get("simd_per_cu", 1)),
        wave_size=properties.get("wave_front_size", 64),
        lds_bytes=properties.get("lds_size_in_kb", 64) * 1024,
        memory_bytes=vram,
        cache_bytes=max((cache.get("size", 0) for cache in caches), default=0) * 1024,
        max_clock_hz=properties.get("max_engine_clk_fcompute", 0) * 1e6,
        link=f"{speed} x{width}" if speed and width else "",
    )


def _pci_address(domain: int, location: int) -> str:
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _product(root: Path, device: Path, device_id: int) -> str:
    """Return the card's name from its own memory, else from libdrm's table of ids."""
    name = read_word(device / "product_name")
    if name:
        return name
    revision = read_word(device / "revision")
    wanted = (f"{device_id:X}", f"{int(revision, 16):X}" if revision else "")
    for line in (read_word(root / _NAMES, 1 << 20) or "").splitlines():
        words = [word.strip() for word in line.split(",", 2)]
        if len(words) == 3 and (words[0].upper(), words[1].upper().lstrip("0") or "0") == wanted:
            return words[2]
    return ""


def _device(root: Path, render_minor: int) -> Path:
    return root / f"sys/class/drm/renderD{render_minor}/device"


def _properties(path: Path) -> dict[str, int]:
    words = (line.split() for line in (read_word(path, 1 << 16) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}
