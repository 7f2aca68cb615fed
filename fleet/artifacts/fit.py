"""Checks whether an artifact fits a device, from the facts of both, before an upload.

Three questions: is the file's code for the device's CPU (ELF machine, and the float ABI of 32-bit ARM); does the CPU
have the features that the artifact's target lets code use; is GPU code for this GPU. Facts that a device does not
report are no reason to refuse. Features have the names of /proc/cpuinfo, as in the devices' labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from fleet.artifacts.artifact import Artifact, check_architecture
from fleet.artifacts.elf import HEADER_BYTES, arm_float_abi, read_header
from fleet.domain.devices import Inventory
from fleet.errors import ArtifactRefused

_V2 = "cx16 popcnt sse4_1 sse4_2 ssse3"
_V3 = f"{_V2} avx avx2 bmi1 bmi2 f16c fma movbe abm"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl"
_X86_CORES = {
    _V2: "x86-64-v2 nehalem westmere silvermont goldmont bdver1",
    f"{_V2} avx": "sandybridge",
    f"{_V2} avx f16c": "ivybridge",
    _V3: "x86-64-v3 haswell core-avx2 broadwell skylake alderlake raptorlake znver1 znver2 znver3 bdver4",
    _V4: "x86-64-v4 skylake-avx512",
    f"{_V4} avx512_vnni": "cascadelake icelake-client icelake-server tigerlake rocketlake",
    f"{_V4} avx512_vnni avx512_bf16": "cooperlake znver4 znver5",
    f"{_V4} avx512_vnni avx512_bf16 amx_tile": "sapphirerapids emeraldrapids graniterapids",
}

_V8_2 = "asimd asimdhp asimddp"
_ARM_CORES = {
    "asimd": "cortex-a34 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73",
    "asimd asimdhp": "carmel",
    _V8_2: "cortex-a55 cortex-a65 cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78 cortex-a78ae cortex-a78c "
    "cortex-x1 neoverse-n1",
    f"{_V8_2} sve i8mm": "neoverse-v1",
    f"{_V8_2} sve sve2 i8mm": "cortex-a510 cortex-a710 cortex-a715 cortex-x2 cortex-x3 neoverse-n2 neoverse-v2",
}
"""Features to LLVM's names of the cores that have them; from "AArch64Processors.td" and "X86.td" of LLVM 22."""

_ARM32_CORES = {
    "vfpv3": "cortex-a8 cortex-a9",
    "vfpv3 vfpv4 idiva": "cortex-a7 cortex-a15 cortex-a17",
    "vfpv3 vfpv4 idiva crc32": "cortex-a32 cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a72 cortex-a73 "
    "cortex-a75 cortex-a76 cortex-a77 cortex-a78",
}
"""The same for 32-bit code. crc32 stands for all features that came with ARMv8."""

_OF_ARM_CORES = {
    arch: frozenset(word for features in cores for word in features.split())
    for arch, cores in (("aarch64", _ARM_CORES), ("armv7l", _ARM32_CORES))
}

_WORDS = {
    "x86_64": {
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
        "avx512vnni": "avx512_vnni",
        "avxvnni": "avx_vnni",
        "avx512bf16": "avx512_bf16",
        "amx-tile": "amx_tile",
        "lzcnt": "abm",
    },
    "aarch64": {"neon": "asimd", "dotprod": "asimddp", "fullfp16": "asimdhp"},
    "armv7l": {"dotprod": "asimddp", "fullfp16": "asimdhp", "vfp3": "vfpv3", "vfp4": "vfpv4", "hwdiv-arm": "idiva"},
}
"""LLVM's names of features where /proc/cpuinfo has others."""

_REPORTED = {
    "x86_64": frozenset(
        "sse4_2 avx avx2 fma f16c avx512f avx512_vnni avx_vnni avx512_bf16 amx_tile".split()  # noqa: SIM905 - as elsewhere
    ),
    "aarch64": frozenset(("asimd", "asimddp", "asimdhp", "sve", "sve2", "i8mm")),
    "armv7l": frozenset(("neon",)),
}
"""Features that agents report as labels if the CPU has them. If any is reported, one without a label is missing."""


def check_fit(artifact: Artifact, head: bytes, inventory: Inventory, *, device_name: str) -> None:
    """Refuse an artifact that the device cannot load or run.

    Args:
        head: the first `HEADER_BYTES` bytes of the artifact's file, or all of a shorter one.

    Raises:
        ArtifactRefused: it does not fit; the message has the reason and the remedy.
    """
    arch = inventory.labels.get("arch", "")
    if arch:
        instead = _own_target(inventory)
        check_architecture(_enough_of(artifact, head), arch, device_name=device_name, instead=instead)
    if artifact.target_json:
        check_target(artifact.target_json, inventory, device_name=device_name)


def check_target(target_json: str, inventory: Inventory, *, device_name: str) -> None:
    """Refuse code built for a target that requires more of the CPU or GPU than the device has.

    Raises:
        ArtifactRefused: it does.
    """
    target, own = _parsed(target_json), _parsed(inventory.target_json)
    _check_gpu(target, own, device_name, _own_target(inventory))
    arch = inventory.labels.get("arch", "")
    missing = {
        feature: reason
        for feature, reason in needed_features(_cpu_part(target), arch).items()
        if feature in _lacking(inventory, own, arch)
    }
    if missing:
        reasons = ", ".join(f"{feature} (by {reason})" for feature, reason in sorted(missing.items()))
        raise ArtifactRefused(
            f"the artifact may use CPU features that {device_name} lacks: {reasons}; "
            f"build it for {_own_target(inventory)}"
        )


def _own_target(inventory: Inventory) -> str:
    """Return the value of `fleet build --target` for a device: its board's name, or its target."""
    named = inventory.labels.get("board") or inventory.target_json
    return f"the device's own target: {named}" if named else "the device's target"


def needed_features(target: Mapping[str, object], arch: str) -> dict[str, str]:
    """Return the CPU features that code for an LLVM target may use, each with the part of the target that allows it."""
    needed: dict[str, str] = {}
    core = str(target.get("mcpu") or "")
    for feature in _features_of_core(core, arch):
        needed[feature] = f"mcpu {core}"
    words = _WORDS.get(arch, {})
    attributes = target.get("mattr")
    for attribute in map(str, attributes if isinstance(attributes, list) else ()):
        name = words.get(attribute[1:], attribute[1:])
        if attribute.startswith("+"):
            needed[name] = f"mattr {attribute}"
        elif attribute.startswith("-"):
            needed.pop(name, None)
    return needed


def _features_of_core(core: str, arch: str) -> list[str]:
    cores = {"x86_64": _X86_CORES, "aarch64": _ARM_CORES, "armv7l": _ARM32_CORES}.get(arch, {})
    return next((features.split() for features, names in cores.items() if core in names.split()), [])


def _lacking(inventory: Inventory, own: Mapping[str, object], arch: str) -> frozenset[str]:
    """Return the features that the device lacks, according to its agent and its ARM core.

    An x86 level is the least that a machine has, but a core of ARM's is all that it is.
    """
    cpu = _cpu_part(own)
    reported = {word for word in _REPORTED.get(arch, ()) if inventory.labels.get(word) == "true"}
    known = _REPORTED.get(arch, frozenset()) if reported else frozenset()
    if arch != "x86_64" and _features_of_core(str(cpu.get("mcpu") or ""), arch):
        known |= _OF_ARM_CORES[arch]
    present = {word for word, value in inventory.labels.items() if value == "true"}
    return known - present - set(needed_features(cpu, arch))


def _check_gpu(target: Mapping[str, object], own: Mapping[str, object], device_name: str, instead: str) -> None:
    kind, own_kind = target.get("kind"), own.get("kind")
    if kind in (None, "llvm", "c") or own_kind is None:
        return
    if kind != own_kind:
        raise ArtifactRefused(
            f"the artifact is built for {kind}, the kernels of {device_name} run as {own_kind}; build it for {instead}"
        )
    found, wanted = _gpu_architecture(target), _gpu_architecture(own)
    if found and wanted and not _runs_on(kind, found, wanted):
        raise ArtifactRefused(
            f"the artifact is built for {found}, the GPU of {device_name} is {wanted}; build it for {wanted}"
        )


def _runs_on(kind: object, built: str, gpu: str) -> bool:
    """Tell whether a cubin or code object runs on a GPU. Cubins run on newer GPUs of their major version, unless they
    end in "a"; AMD code runs only on its own architecture.
    """
    if kind != "cuda" or built.endswith(("a", "f")):
        return built.rstrip("af") == gpu.rstrip("af") if kind == "cuda" else built == gpu
    built_number, gpu_number = (int(re.sub(r"\D", "", arch) or 0) for arch in (built, gpu))
    return built_number // 10 == gpu_number // 10 and built_number <= gpu_number


def _gpu_architecture(target: Mapping[str, object]) -> str:
    return str(target.get("arch" if target.get("kind") == "cuda" else "mcpu") or "").partition(":")[0]


def _cpu_part(target: Mapping[str, object]) -> Mapping[str, object]:
    """Return the part of a target that describes its CPU code."""
    if target.get("kind") == "llvm":
        return target
    host = target.get("host")
    return host if isinstance(host, Mapping) else {}


def _parsed(target_json: str) -> Mapping[str, object]:
    try:
        target = json.loads(target_json)
    except ValueError:
        return {}
    return target if isinstance(target, Mapping) else {}


def _enough_of(artifact: Artifact, head: bytes) -> bytes:
    """Return the bytes of a file that tell its float ABI: the whole file if a linker left e_flags empty."""
    header = read_header(head)
    if header is None or header.machine != "armv7l" or arm_float_abi(head[:HEADER_BYTES]):
        return head
    return artifact.path.read_bytes()
