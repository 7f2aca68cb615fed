"""Describes a Linux machine to the fleet: labels, TVM target, device model, fingerprint."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from device_agents.machine.device_tree import read_model
from device_agents.machine.software import read_software
from fleet.base.machine import architecture, machine_fingerprint, read_text

ARM_CORES = {
    ("0x41", "0xd03"): "cortex-a53",
    ("0x41", "0xd04"): "cortex-a35",
    ("0x41", "0xd05"): "cortex-a55",
    ("0x41", "0xd07"): "cortex-a57",
    ("0x41", "0xd08"): "cortex-a72",
    ("0x41", "0xd09"): "cortex-a73",
    ("0x41", "0xd0a"): "cortex-a75",
    ("0x41", "0xd0b"): "cortex-a76",
    ("0x41", "0xd0c"): "neoverse-n1",
    ("0x41", "0xd0d"): "cortex-a77",
    ("0x41", "0xd40"): "neoverse-v1",
    ("0x41", "0xd41"): "cortex-a78",
    ("0x41", "0xd44"): "cortex-x1",
    ("0x41", "0xd46"): "cortex-a510",
    ("0x41", "0xd47"): "cortex-a710",
    ("0x41", "0xd49"): "neoverse-n2",
    ("0x41", "0xd4f"): "neoverse-v2",
    ("0x41", "0xc07"): "cortex-a7",
    ("0x41", "0xc09"): "cortex-a9",
    ("0x41", "0xc0f"): "cortex-a15",
}
"""LLVM's names of cores, by (CPU implementer, CPU part) of /proc/cpuinfo."""

_X86_LEVELS = (
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl avx2 fma"),
    ("x86-64-v3", "avx2 bmi1 bmi2 f16c fma movbe abm"),
    ("x86-64-v2", "cx16 popcnt sse4_1 sse4_2 ssse3"),
)
_X86_DOT_PRODUCTS = {"x86-64-v4": ("avx512_vnni", "+avx512vnni"), "x86-64-v3": ("avx_vnni", "+avxvnni")}
"""Instructions that sum products of 8-bit integers, by level: Linux's name of the feature and LLVM's. No level has
it."""

_LABELLED = (
    *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile"),
    *("neon", "asimd", "asimddp", "asimdhp", "sve", "sve2", "i8mm"),
)
"""Vector features worth selecting by."""

kept_off: set[int] = set()
"""Logical CPUs that this process leaves to kernels. Devices found later may still be measured on them."""

_TRIPLES = {
    "aarch64": "aarch64-linux-gnu",
    "armv7l": "armv7l-linux-gnueabihf",
    "riscv64": "riscv64-linux-gnu",
}
"""LLVM triples by architecture; in the target, so that a builder on another architecture cross-compiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One machine."""

    arch: str
    """Architecture as `uname -m` names it: "x86_64", "aarch64"."""

    model: str
    """Readable model: "Intel(R) Xeon(R) Processor", "Raspberry Pi 4 Model B"."""

    mcpu: str
    """LLVM's name of the core or level."""

    features: frozenset[str]
    core_count: int
    """Physical cores that this process may use: hyper-threads of one core count once."""

    cpu_count: int
    """Logical CPUs that this process may use."""

    max_freq_hz: float | None
    memory_bytes: int
    caches: dict[str, str]
    """ "L1d" -> "48K", of the first core."""

    fingerprint: str
    """The same for all processes on this machine since its boot, and nowhere else."""

    software: dict[str, str]
    """Versions below its programs: see `read_software`."""

    def target_json(self, core_count: int) -> str:
        """Return the TVM target of kernels for this machine."""
        target: dict[str, object] = {"kind": "llvm", "mcpu": self.mcpu, "num-cores": core_count}
        if self.arch in _TRIPLES:
            target["mtriple"] = _TRIPLES[self.arch]
            if self.arch == "aarch64":
                target["mattr"] = ["+neon"]
        feature, attribute = _X86_DOT_PRODUCTS.get(self.mcpu, ("", ""))
        if feature in self.features:
            target["mattr"] = [attribute]
        return json.dumps(target)

    def labels(self, host_name: str, core_count: int) -> dict[str, str]:
        """Return the labels for selectors."""
        features = {name: "true" for name in _LABELLED if name in self.features}
        return {
            "arch": self.arch,
            "model": slug(self.model),
            "cores": str(core_count),
            "mcpu": self.mcpu,
            "host": host_name,
            **features,
        }

    def facts(self) -> dict[str, str]:
        """Return further facts as text."""
        facts = {f"cache {level}": size for level, size in self.caches.items()}
        facts["logical CPUs"] = str(self.cpu_count)
        if self.max_freq_hz:
            facts["max frequency"] = f"{self.max_freq_hz / 1e9:.2f} GHz"
        vectors = [name for name in _LABELLED if name in self.features]
        if vectors:
            facts["vector features"] = " ".join(vectors)
        return facts | self.software


def read_host(root: Path = Path("/"), *, arch: str | None = None, usable_cpus: set[int] | None = None) -> Host:
    """Read a machine from its /proc and /sys below `root`; arch and usable CPUs are this process's unless given."""
    arch = arch or architecture()
    cpuinfo = read_text(root / "proc/cpuinfo")
    usable = usable_cpus if usable_cpus is not None else own_cpus()
    features = frozenset(_field(cpuinfo, "flags", "Features").split())
    return Host(
        arch=arch,
        model=_model(root, cpuinfo, arch),
        mcpu=_mcpu(arch, features, cpuinfo),
        features=features,
        core_count=_core_count(root, usable),
        cpu_count=len(usable),
        max_freq_hz=_max_freq_hz(root),
        memory_bytes=_memory_bytes(root),
        caches=_caches(root),
        fingerprint=machine_fingerprint(root),
        software=read_software(root),
    )


def slug(text: str) -> str:
    """Make a label value of a product name: "Intel(R) Xeon(R) Processor" -> "intel-xeon-processor"."""
    plain = re.sub(r"\((?:r|tm|c)\)", " ", text, flags=re.IGNORECASE)
    return re.sub(r"[^a-z0-9.]+", "-", plain.lower()).strip("-") or "unknown"


def own_cpus() -> set[int]:
    """Return the logical CPUs that this process may use, including those that it leaves to kernels."""
    if hasattr(os, "sched_getaffinity"):
        return kept_off | os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _model(root: Path, cpuinfo: str, arch: str) -> str:
    found = read_model(root) or _field(cpuinfo, "model name", "Model", "Hardware", "uarch")
    return re.sub(r"\s+", " ", found).strip() or _arm_core(cpuinfo) or arch


def _mcpu(arch: str, features: frozenset[str], cpuinfo: str) -> str:
    if arch == "x86_64":
        fitting = (level for level, needed in _X86_LEVELS if features.issuperset(needed.split()))
        return next(fitting, "x86-64")
    if arch in ("aarch64", "armv7l"):
        return _arm_core(cpuinfo) or "generic"
    return "generic-rv64" if arch == "riscv64" else "generic"


def _arm_core(cpuinfo: str) -> str | None:
    """Return the core listed last: on big.LITTLE machines, Linux lists the big cores last."""
    implementers = re.findall(r"^CPU implementer\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    parts = re.findall(r"^CPU part\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    known = [ARM_CORES[pair] for pair in zip(implementers, parts, strict=False) if pair in ARM_CORES]
    return known[-1] if known else None


def _core_count(root: Path, usable: set[int]) -> int:
    cores = set()
    for cpu in usable:
        siblings = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").strip()
        cores.add(siblings or str(cpu))
    return max(1, len(cores))


def _max_freq_hz(root: Path) -> float | None:
    text = read_text(root / "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    return float(text) * 1000 if text.isdigit() else None


def _memory_bytes(root: Path) -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _caches(root: Path) -> dict[str, str]:
    caches = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index[0-9]*")):
        kind = {"Data": "d", "Instruction": "i"}.get(read_text(index / "type").strip(), "")
        level, size = read_text(index / "level").strip(), read_text(index / "size").strip()
        if level and size:
            caches[f"L{level}{kind}"] = size
    return caches


def _field(cpuinfo: str, *names: str) -> str:
    for name in names:
        found = re.search(rf"^{re.escape(name)}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
        if found:
            return found[1].strip()
    return ""
