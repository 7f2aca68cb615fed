"""Facts about an Android phone, read from the output of its own commands. Pure: no adb here.

Batteries and heat: https://source.android.com/docs/core/power/thermal-mitigation
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from device_agents.machine.host import ARM_CORES, slug
from fleet.domain.devices import Telemetry

CORES = ("all", "big", "little")
"""Choices of the setting `cores`."""

MARK = "@fleet@"
"""Separates the parts of an answer, so that one command asks a phone for everything, instead of ten."""

FACTS_COMMAND = (
    f"getprop; echo {MARK}; cat /proc/cpuinfo; echo {MARK}; cat /proc/meminfo; echo {MARK}; "
    "for c in /sys/devices/system/cpu/cpu[0-9]*; do "
    'echo "${c##*/cpu} $(cat $c/cpufreq/cpuinfo_max_freq 2>/dev/null || cat $c/cpu_capacity 2>/dev/null)"; done; '
    f"echo {MARK}; cat /proc/sys/kernel/random/boot_id; echo {MARK}; "
    "dumpsys SurfaceFlinger 2>/dev/null | grep GLES | head -n 1"
)
READINGS_COMMAND = (
    f"dumpsys battery; echo {MARK}; dumpsys thermalservice; echo {MARK}; "
    f"cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null; echo {MARK}; "
    f"cat /sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq 2>/dev/null; echo {MARK}; "
    f"cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor 2>/dev/null; echo {MARK}; "
    f"cat /proc/loadavg 2>/dev/null; echo {MARK}; cat /proc/meminfo; echo {MARK}; df -k /data/local/tmp"
)

_ABIS = {"arm64-v8a": "aarch64", "armeabi-v7a": "armv7l", "armeabi": "armv7l", "x86_64": "x86_64", "x86": "x86"}
_THERMAL_WORDS = ("", "light", "moderate", "severe", "critical", "emergency", "shutdown")
_CPU, _GPU, _BATTERY, _SKIN = 0, 1, 2, 3
"""Types of temperatures, as Android numbers them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoneFacts:
    """Facts that do not change while a phone is up."""

    model: str
    """ "Google Pixel 6"."""

    soc: str
    abi: str
    arch: str
    """Architecture as `uname -m` names it."""

    sdk: str
    system: str
    """Fingerprint of its Android build."""

    is_booted: bool
    memory_bytes: int
    max_freqs: dict[int, int]
    """Highest clock of each core, in the phone's own units; empty if unknown."""

    cpu_parts: tuple[str, ...]
    """ "0x41:0xd08" of each core."""

    features: frozenset[str]
    boot_id: str
    gpu: str
    """Name reported by its graphics driver: "Qualcomm, Adreno (TM) 660, OpenGL ES 3.2"."""

    def cores(self, wanted: str) -> tuple[int, ...]:
        """Return the cores for a choice of CORES: "little" have the lowest maximum clock, "big" are all others.

        Raises:
            ValueError: the phone's cores are all alike, or it does not tell their clocks.
        """
        if wanted == "all" or not self.max_freqs:
            if wanted != "all":
                raise ValueError(
                    f"the phone does not tell the clocks of its cores; set 'cores: all' instead of {wanted}"
                )
            return tuple(sorted(self.max_freqs)) or tuple(range(max(1, len(self.cpu_parts))))
        lowest = min(self.max_freqs.values())
        if lowest == max(self.max_freqs.values()):
            raise ValueError(f"all cores of the phone are alike; set 'cores: all' instead of {wanted}")
        return tuple(core for core, freq in sorted(self.max_freqs.items()) if (freq == lowest) == (wanted == "little"))

    def mcpu(self, cores: tuple[int, ...]) -> str:
        """Return LLVM's name of the last of these cores with a known name, or nothing."""
        parts = [self.cpu_parts[core] for core in cores if core < len(self.cpu_parts)] or list(self.cpu_parts)
        names = [ARM_CORES.get((implementer, number)) for implementer, _, number in (p.partition(":") for p in parts)]
        return next((name for name in reversed(names) if name), "")

    def labels(self) -> dict[str, str]:
        """Return the labels for selectors."""
        labels = {"arch": self.arch, "model": slug(self.model), "abi": self.abi, "sdk": self.sdk}
        if self.soc:
            labels["soc"] = slug(self.soc)
        return {key: value for key, value in labels.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhoneReadings:
    """Readings that change all the time."""

    telemetry: Telemetry = field(default_factory=Telemetry)
    free_bytes: int | None = None
    """Free space in /data."""


def parse_facts(text: str) -> PhoneFacts:
    """Read the answer to FACTS_COMMAND.

    Raises:
        ValueError: it is not one.
    """
    parts = text.split(MARK)
    if len(parts) < 6:
        raise ValueError(f"the phone does not tell what it is: {text[:200]!r}")
    properties = dict(re.findall(r"^\[(.+?)\]: \[(.*)\]$", parts[0].replace("\r", ""), re.MULTILINE))
    abi = properties.get("ro.product.cpu.abi", "")
    maker, model = properties.get("ro.product.manufacturer", ""), properties.get("ro.product.model", "")
    name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
    implementers = re.findall(r"^CPU implementer\s*:\s*(\S+)", parts[1], re.MULTILINE)
    numbers = re.findall(r"^CPU part\s*:\s*(\S+)", parts[1], re.MULTILINE)
    features = re.search(r"^(?:Features|flags)\s*:\s*(.+)$", parts[1], re.MULTILINE)
    freqs = re.findall(r"^(\d+) (\d+)$", parts[3], re.MULTILINE)
    count = len(re.findall(r"^processor\s*:", parts[1], re.MULTILINE))
    return PhoneFacts(
        model=name.strip() or "Android",
        soc=properties.get("ro.soc.model") or properties.get("ro.board.platform", ""),
        abi=abi,
        arch=_ABIS.get(abi, abi or "unknown"),
        sdk=properties.get("ro.build.version.sdk", ""),
        system=properties.get("ro.build.fingerprint", ""),
        is_booted=properties.get("sys.boot_completed") == "1",
        memory_bytes=_kilobytes(parts[2], "MemTotal") or 0,
        max_freqs={int(core): int(freq) for core, freq in freqs},
        cpu_parts=tuple(f"{one}:{two}" for one, two in zip(implementers, numbers, strict=False)) or ("",) * count,
        features=frozenset(features[1].split()) if features else frozenset(),
        boot_id=parts[4].strip(),
        gpu=parts[5].partition("GLES:")[2].strip(),
    )


def parse_readings(text: str) -> PhoneReadings:
    """Read the answer to READINGS_COMMAND. Facts that the phone does not report stay unset."""
    parts = [*text.replace("\r", "").split(MARK), *[""] * 8]
    battery, thermal, zones, freqs, governor, load, memory, disk = parts[:8]
    status = _number(thermal, r"Thermal Status:\s*(\d+)")
    words = _THERMAL_WORDS[min(int(status), len(_THERMAL_WORDS) - 1)] if status else ""
    clocks = [int(khz) * 1000 for khz in freqs.split() if khz.isdigit()]
    level, scale = _number(battery, r"^\s*level:\s*(\d+)"), _number(battery, r"^\s*scale:\s*(\d+)")
    telemetry = Telemetry(
        temp_c=_hottest(battery, thermal, zones),
        battery_percent=None if level is None else 100 * level / (scale or 100),
        throttle_reasons=(f"thermal: {words}",) if words else (),
        freq_hz=sum(clocks) / len(clocks) if clocks else None,
        governor=governor.strip() or None,
        load_1min=_number(load, r"^\s*([\d.]+)"),
        memory_available_bytes=_kilobytes(memory, "MemAvailable"),
    )
    return PhoneReadings(telemetry=telemetry, free_bytes=_free_bytes(disk))


def _hottest(battery: str, thermal: str, zones: str) -> float | None:
    """Return the temperature of the hottest processor, else of the skin, a thermal zone, or the battery."""
    # "Cached temperatures" come first and may be old; the HAL's own are current.
    current = thermal.partition("Current temperatures from HAL")[2] or thermal
    found = re.findall(r"mValue=(-?[\d.]+), mType=(-?\d+)", current)
    for kinds in ((_CPU, _GPU), (_SKIN,)):
        temps = [float(value) for value, kind in found if int(kind) in kinds and -40 < float(value) < 150]
        if temps:
            return max(temps)
    # In thousandths of a degree; some kernels report whole degrees.
    raw = [int(word) for word in zones.split() if re.fullmatch(r"-?\d+", word)]
    temps = [value / 1000 if abs(value) > 1000 else float(value) for value in raw]
    plausible = [temp for temp in temps if 0 < temp < 150]
    tenths = _number(battery, r"^\s*temperature:\s*(-?\d+)")
    return max(plausible) if plausible else None if tenths is None else tenths / 10


def _free_bytes(disk: str) -> int | None:
    """Return the free bytes in the output of `df -k`: the fourth number of the last line, under any heading."""
    lines = [line.split() for line in disk.strip().splitlines()]
    if not lines or len(lines[-1]) < 4 or not lines[-1][3].isdigit():
        return None
    return int(lines[-1][3]) * 1024


def _kilobytes(text: str, name: str) -> int | None:
    value = _number(text, rf"^{name}:\s+(\d+) kB")
    return None if value is None else int(value) * 1024


def _number(text: str, pattern: str) -> float | None:
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else None


def default_target(facts: PhoneFacts, cores: tuple[int, ...], device_type: str) -> Mapping[str, object]:
    """Return the TVM target of a phone that is not a known board.

    Raises:
        ValueError: no target can be guessed.
    """
    if facts.arch not in ("aarch64", "x86_64"):
        raise ValueError(f"a phone of ABI {facts.abi!r} needs 'target' in its configuration")
    cpu: dict[str, object] = {"kind": "llvm", "mtriple": f"{facts.arch}-linux-android"}
    mcpu = facts.mcpu(cores)
    if mcpu:
        cpu["mcpu"] = mcpu
    if facts.arch == "aarch64":
        cpu["mattr"] = ["+neon"]
    if device_type == "cpu":
        return {**cpu, "num-cores": len(cores)}
    return {"kind": device_type, "host": cpu}
