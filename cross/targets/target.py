"""Parses TVM targets, without TVM where that is possible.

Files, the library and messages hold a target as JSON: {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2}. It is
parsed once, where it enters a process:

    target = parse_target(inventory.target_json)
    target.is_processor, target.arch, target.cores
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from cross.targets.boards import find_board
from fleet.artifacts.fit import needed_features
from fleet.base.config import did_you_mean
from fleet.errors import ConfigError

if TYPE_CHECKING:
    import tvm.target

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

_OPTIMIZATION = "opt-level"
"""Target option: LLVM's optimization level."""


_WIDEST_FIRST = {
    "x86_64": {
        "avx512_vnni": "avx512 vnni",
        "avx512f": "avx512",
        "avx_vnni": "avx2 vnni",
        "avx2": "avx2",
        "sse4_2": "sse4",
    },
    "aarch64": {"sve2": "sve2", "sve": "sve", "asimddp": "neon dotprod", "asimd": "neon"},
}
"""By architecture: features with the name of the instruction set that has them, the widest first."""


@dataclass(frozen=True, slots=True)
class Target:
    """A TVM target and the facts that follow from it; made by `parse_target`. Equality and pickling go by its text."""

    json: str
    """The exact text: for TVM, files, messages and the library's keys."""

    options: Mapping[str, object] = field(compare=False, repr=False)
    """The parsed text, read-only."""

    def __reduce__(self) -> tuple[Callable[[str], Target], tuple[str]]:
        return parse_target, (self.json,)

    @property
    def kind(self) -> str:
        """TVM's name of the code generator: "llvm", "cuda", ..."""
        return str(self.options["kind"])

    @property
    def is_processor(self) -> bool:
        """Kernels run on the cores of a processor, as LLVM's code."""
        return self.kind == "llvm"

    @property
    def cores(self) -> int | None:
        """Cores that kernels run on, or None if the target states no number."""
        cores = self.options.get("num-cores")
        return cores if isinstance(cores, int) else None

    @property
    def triple(self) -> str:
        """LLVM's triple of the code for the processor, or "" for this machine's."""
        host = self.options.get("host")
        return str(self.options.get("mtriple") or (host.get("mtriple") if isinstance(host, dict) else "") or "")

    @property
    def arch(self) -> str:
        """CPU architecture that the target's (or its host's) code runs on, as `uname -m` names it."""
        return _architecture_of(self.triple)

    @property
    def instruction_set(self) -> str:
        """Instructions on which fast schedules depend: "avx512 vnni", "neon dotprod", "cuda sm_86".

        The cost model learns across device models of one instruction set.
        """
        if not self.is_processor:
            return f"{self.kind} {self.options.get('arch') or self.options.get('mcpu') or ''}".strip()
        features = needed_features(self.options, self.arch)
        names = _WIDEST_FIRST.get(self.arch, {})
        return next((name for feature, name in names.items() if feature in features), self.arch)

    @property
    def intrinsics_family(self) -> str:
        """Family of tensor intrinsics that schedules can use: "x86", "arm_cpu", "cuda", ..., or "" for none."""
        if not self.is_processor:
            return _FAMILY_OF_KIND.get(self.kind, "")
        return "arm_cpu" if self.arch in ("aarch64", "armv7l") else _FAMILY_OF_ARCH.get(self.arch, "")


@functools.lru_cache(maxsize=256)
def parse_target(text: str) -> Target:
    """Parse a target's JSON and refuse targets that cannot work. Repeated calls are free.

    Raises:
        ConfigError: no JSON object, no kind, or a 32-bit ARM target that would be built soft-float.
    """
    try:
        target = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'the target {text[:200]!r} is no JSON: {error}; write {{"kind": "llvm"}}') from error
    if not isinstance(target, dict) or not isinstance(target.get("kind"), str):
        raise ConfigError(f'the target {text!r} names no kind; write {{"kind": "llvm", ...}}')
    if _is_arm32(target) and target.get("mfloat-abi") != _HARD_FLOAT:
        raise ConfigError(
            f"the target {text!r} would be built soft-float, which a hard-float board loads and answers with "
            'garbage; add "mfloat-abi": "hard"'
        )
    return Target(text, MappingProxyType(target))


def resolve_target(text: str) -> Target:
    """Return the target that a user named: a board ("rpi4-64", "sm_86"), "host", or a target as JSON.

    Raises:
        ConfigError: no such board, or no target that can work.
    """
    text = text.strip()
    if text == "host":
        return host_target()
    if text.partition(" ")[2].lstrip().startswith("-"):
        text = _target_of_words(text)
    elif not text.startswith(("{", "[", '"')):
        text = find_board(text).target_json
    return parse_target(text)


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


def is_x86(triple: str) -> bool:
    """Tell whether an LLVM triple, "" for this machine's, is of an x86 processor."""
    return _FAMILY_OF_ARCH.get(_architecture_of(triple)) == "x86"


def _architecture_of(triple: str) -> str:
    arch = triple.split("-")[0] or platform.machine()
    if arch.startswith(("armv7", "armv8l")) or arch in ("arm", "armhf"):
        return "armv7l"
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch)


def host_target() -> Target:
    """Return the target of this machine if there is no inventory: generic code for its architecture."""
    target: dict[str, object] = {"kind": "llvm", "num-cores": os.cpu_count() or 1}
    levels = [level for level, needed in _X86_LEVELS.items() if _cpu_flags() >= needed]
    if platform.machine() == "x86_64" and levels:
        target["mcpu"] = levels[-1]
        feature, attribute = _X86_DOT_PRODUCTS[levels[-1]]
        if feature in _cpu_flags():
            target["mattr"] = [attribute]
    return parse_target(json.dumps(target))


def unscheduled_target(target: Target) -> Target:
    """Return the target that unscheduled programs are compiled for: a processor's gets LLVM's -O2.

    TVM's default, -O3, unrolls their loops completely. That takes twice as long, and the programs are as fast: the
    unscheduled MobileNet V2 takes 0.93 of its time with -O2, SqueezeNet 1.03.
    """
    if not target.is_processor or _OPTIMIZATION in target.options:
        return target
    return parse_target(json.dumps({**target.options, _OPTIMIZATION: 2}))


@functools.lru_cache(maxsize=32)
def make_target(target: Target) -> tvm.target.Target:
    """Return TVM's target of a description, with this machine's core count where it names none.

    Raises:
        ConfigError: TVM knows no such target.
    """
    import tvm

    if target.cores is not None and target.cores < 1:
        raise ConfigError(f"a target of {target.cores} cores cannot be built for; num-cores goes from 1")
    _check_triple(target.triple)
    _check_core(target.options)
    default = {"num-cores": os.cpu_count() or 1} if target.is_processor else {}
    try:
        return tvm.target.Target({**default, **target.options})
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"TVM refuses the target {target.json}: {_first_sentence(error)}") from error


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
    import tvm
    from tvm.target.codegen import llvm_get_cpu_archlist, llvm_is_valid_cpu

    host = target.get("host")
    if isinstance(host, Mapping):
        _check_core(host)
    mcpu, triple = str(target.get("mcpu") or ""), str(target.get("mtriple") or "")
    if target.get("kind") != "llvm" or not mcpu or llvm_is_valid_cpu(mcpu, triple):
        return
    any_core = tvm.target.Target({"kind": "llvm", **({"mtriple": triple} if triple else {})})
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
