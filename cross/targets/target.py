"""Reads TVM target descriptions, without TVM where that is possible.

A target travels as JSON, as the device's inventory states it: {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cross.targets.boards import find_board
from fleet.base.config import did_you_mean
from fleet.errors import ConfigError

if TYPE_CHECKING:
    from tvm.target import Target

_FAMILY_OF_KIND = {"cuda": "cuda", "nvptx": "cuda", "rocm": "rocm", "metal": "metal", "hexagon": "hexagon"}
_FAMILY_OF_ARCH = {"x86_64": "x86", "i686": "x86", "i386": "x86", "riscv64": "riscv_cpu", "riscv32": "riscv_cpu"}
_HARD_FLOAT = "hard"
_ARM = re.compile(r"arm(64\w*|eb|v\d\w*)?")
_X86_LEVELS = {
    "x86-64-v3": frozenset({"avx2", "fma", "bmi2"}),
    "x86-64-v4": frozenset({"avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}
"""Linux's names of each level's features. A machine has the last level that is complete; agents report it as well."""

_X86_DOT_PRODUCTS = {"x86-64-v4": ("avx512_vnni", "+avx512vnni"), "x86-64-v3": ("avx_vnni", "+avxvnni")}
"""Instructions for 8-bit integers that no level has, by level: Linux's name and LLVM's; an agent says them, too."""


_LISTS = ("keys", "libs", "mattr")
"""Target options that take a list of words."""


def parse_target(target_json: str) -> dict[str, object]:
    """Read a target description and refuse invalid ones.

    Raises:
        ConfigError: no JSON object, no kind, or a 32-bit ARM target that would be built soft-float.
    """
    try:
        target = json.loads(target_json)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'the target {target_json[:200]!r} is no JSON: {error}; write {{"kind": "llvm"}}') from error
    if not isinstance(target, dict) or not isinstance(target.get("kind"), str):
        raise ConfigError(f'the target {target_json!r} names no kind; write {{"kind": "llvm", ...}}')
    if _is_arm32(target) and target.get("mfloat-abi") != _HARD_FLOAT:
        raise ConfigError(
            f"the target {target_json!r} would be built soft-float, which a hard-float board loads and answers with "
            'garbage; add "mfloat-abi": "hard"'
        )
    return target


def resolve_target(text: str) -> str:
    """Return the target, as JSON, that a user named: a board ("rpi4-64", "sm_86"), "host", or a target as JSON.

    Raises:
        ConfigError: no such board, or no target that can work.
    """
    text = text.strip()
    if text == "host":
        return host_target_json()
    if text.partition(" ")[2].lstrip().startswith("-"):
        text = _target_of_words(text)
    elif not text.startswith(("{", "[", '"')):
        return find_board(text).target_json
    parse_target(text)
    return text


def _target_of_words(text: str) -> str:
    """Return the JSON of a target in the form of TVM before 0.20, such as "llvm -mcpu=skylake -num-cores=4".

    Raises:
        ConfigError: a word is not of the form -key=value.
    """
    kind, *words = text.split()
    target: dict[str, object] = {"kind": kind}
    for word in words:
        key, equals, value = word.removeprefix("-").partition("=")
        if not (word.startswith("-") and key and equals and value):
            raise ConfigError(
                f"{word!r} in the target {text!r} is not of the form -key=value; "
                f'write it so, or as JSON: {{"kind": "{kind}", ...}}'
            )
        parts = value.split(",")
        target[key] = parts if key in _LISTS else int(value) if value.isdecimal() else value
    return json.dumps(target)


def architecture(target_json: str) -> str:
    """Return the CPU architecture that a target's (or its host's) code runs on, in the words of `uname -m`."""
    return _architecture_of(triple(target_json))


def is_x86(triple: str) -> bool:
    """Tell whether an LLVM triple, "" for this machine's, is of an x86 processor."""
    return _FAMILY_OF_ARCH.get(_architecture_of(triple)) == "x86"


def _architecture_of(triple: str) -> str:
    arch = triple.split("-")[0] or platform.machine()
    if arch.startswith(("armv7", "armv8l")) or arch in ("arm", "armhf"):
        return "armv7l"
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch)


def triple(target_json: str) -> str:
    """Return the target's LLVM triple, or "" for this machine's."""
    target = parse_target(target_json)
    host = target.get("host")
    return str(target.get("mtriple") or (host.get("mtriple") if isinstance(host, dict) else "") or "")


def family(target_json: str) -> str:
    """Return which family of tensor intrinsics a target can use: "x86", "arm_cpu", "cuda", ..., or "" for none."""
    if not target_json:
        return ""
    kind = parse_target(target_json)["kind"]
    if kind != "llvm":
        return _FAMILY_OF_KIND.get(str(kind), "")
    arch = architecture(target_json)
    return "arm_cpu" if arch in ("aarch64", "armv7l") else _FAMILY_OF_ARCH.get(arch, "")


def host_target_json() -> str:
    """Return the target of this machine when there is no inventory to ask: generic code for its architecture."""
    target: dict[str, object] = {"kind": "llvm", "num-cores": os.cpu_count() or 1}
    levels = [level for level, needed in _X86_LEVELS.items() if _cpu_flags() >= needed]
    if platform.machine() == "x86_64" and levels:
        target["mcpu"] = levels[-1]
        feature, attribute = _X86_DOT_PRODUCTS[levels[-1]]
        if feature in _cpu_flags():
            target["mattr"] = [attribute]
    return json.dumps(target)


@functools.lru_cache(maxsize=32)
def make_target(target_json: str) -> Target:
    """Return TVM's target of a description, with this machine's core count where it names none.

    Raises:
        ConfigError: TVM knows no such target.
    """
    from tvm.target import Target

    target = parse_target(target_json)
    if target["kind"] == "llvm":
        target.setdefault("num-cores", os.cpu_count() or 1)
    cores = target.get("num-cores", 1)
    if isinstance(cores, int) and cores < 1:
        raise ConfigError(f"a target of {cores} cores cannot be built for; num-cores goes from 1")
    _check_triple(triple(target_json))
    _check_core(target)
    try:
        return Target(target)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"TVM refuses the target {target_json}: {_first_sentence(error)}") from error


def _check_triple(triple: str) -> None:
    """Refuse a machine that LLVM does not know: TVM would crash, and this process with it.

    For an ARM that there is not even LLVM's own question crashes.
    """
    from tvm.target.codegen import llvm_is_valid_cpu

    arch = triple.split("-")[0]
    is_odd_arm = arch.startswith("arm") and _ARM.fullmatch(arch) is None
    if triple and (is_odd_arm or not llvm_is_valid_cpu("generic", triple)):
        raise ConfigError(f"LLVM knows no machine {triple!r}; a triple is like 'aarch64-linux-gnu'")


def _check_core(target: Mapping[str, object]) -> None:
    """Refuse a core unknown to LLVM, also of a host. TVM would only print a message and use a generic core."""
    from tvm.target import Target
    from tvm.target.codegen import llvm_get_cpu_archlist, llvm_is_valid_cpu

    host = target.get("host")
    if isinstance(host, Mapping):
        _check_core(host)
    mcpu, triple = str(target.get("mcpu") or ""), str(target.get("mtriple") or "")
    if target.get("kind") != "llvm" or not mcpu or llvm_is_valid_cpu(mcpu, triple):
        return
    any_core = Target({"kind": "llvm", **({"mtriple": triple} if triple else {})})
    known = [str(name) for name in llvm_get_cpu_archlist(any_core)]
    raise ConfigError(f"LLVM knows no core {mcpu!r} for {triple or 'this CPU'}{did_you_mean(mcpu, known)}")


def _is_arm32(target: Mapping[str, object]) -> bool:
    arch = str(target.get("mtriple") or "").split("-")[0]
    return arch == "armhf" or (arch.startswith("arm") and not arch.startswith("arm64"))


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo") as file:  # noqa: PTH123 - read line by line, the file is endless on big machines
            return next((set(line.split(":", 1)[1].split()) for line in file if line.startswith("flags")), set())
    except OSError:
        return set()


def _first_sentence(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
