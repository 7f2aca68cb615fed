"""Finds a linker for a target and turns object files into a shared library.

A TVM module needs next to nothing from the linker, so the fast paths of each are used: no default libraries to search,
no start files. Measured, warm: `gcc -shared` 8-15 ms, `ld.lld` 24-35 ms, `zig cc -nostdlib` 12-16 ms.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cross.targets import architecture, triple
from fleet.errors import BuildError, ConfigError

_LINK_TIMEOUT_SEC = 60.0
_STDERR_LINES = 12
_LLD_EMULATION = {
    "x86_64": "elf_x86_64",
    "aarch64": "aarch64linux",
    "armv7l": "armelf_linux_eabi",
    "riscv64": "elf64lriscv",
}
_ZIG_ARCH = {"armv7l": "arm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Linker:
    """A command that links objects to a shared library when given `-o OUTPUT OBJECT...`."""

    name: str
    """For people and for the artifact's facts: "gcc", "ld.lld"."""

    command: tuple[str, ...]


@functools.lru_cache(maxsize=32)
def find_linker(target_json: str, explicit: str | None = None) -> Linker:
    """Return the linker for a target: the explicit command, `<triple>-gcc` (plain compilers for this machine's own
    architecture), ziglang where installed, `ld.lld`.

    Raises:
        ConfigError: there is none; the message names what to install.
    """
    if explicit:
        command = tuple(shlex.split(explicit))
        if shutil.which(command[0]) is None:
            raise ConfigError(f"the linker {command[0]!r} is not on PATH")
        return Linker(name=Path(command[0]).name, command=(*command, "-shared"))
    arch = architecture(target_json)
    for find in (_find_compiler, _find_zig, _find_lld):
        found = find(arch, triple(target_json))
        if found is not None:
            return found
    wanted = triple(target_json) or f"{arch}-linux-gnu"
    raise ConfigError(f"no linker for {arch}: install {wanted}-gcc, lld (ld.lld), or the Python package ziglang")


def link(linker: Linker, objects: Sequence[Path], output: Path) -> None:
    """Link objects to the shared library `output`.

    Raises:
        BuildError: the linker failed; the message carries the command and its last lines.
    """
    command = [*linker.command, "-o", str(output), *map(str, objects)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LINK_TIMEOUT_SEC, check=False)
    except OSError as error:
        raise BuildError(f"cannot run {shlex.join(command)}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(f"{shlex.join(command)} ran longer than {_LINK_TIMEOUT_SEC:.0f} s", "BUILD_TIMEOUT") from error
    if done.returncode != 0:
        last = "\n".join(done.stderr.strip().splitlines()[-_STDERR_LINES:])
        raise BuildError(f"{shlex.join(command)} exited with {done.returncode}:\n{last}")


def _find_compiler(arch: str, target_triple: str) -> Linker | None:
    own = platform.machine() == arch and "android" not in target_triple and "musl" not in target_triple
    names = [f"{target_triple}-gcc"] if target_triple else []
    names += [f"{_debian_triple(arch)}-gcc"] if "android" not in target_triple else []
    names += ["gcc", "cc", "clang"] if own else []
    found = next((name for name in names if shutil.which(name)), None)
    if found is None:
        return None
    return Linker(name=found, command=(found, "-shared"))


def _find_zig(arch: str, target_triple: str) -> Linker | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    abi = "musleabihf" if arch == "armv7l" else "musl"
    zig_target = f"{_ZIG_ARCH.get(arch, arch)}-linux-{abi}"
    command = (sys.executable, "-m", "ziglang", "cc", "-target", zig_target, "-nostdlib", "-shared")
    return Linker(name="ziglang", command=command)


def _find_lld(arch: str, target_triple: str) -> Linker | None:
    if shutil.which("ld.lld") is None or arch not in _LLD_EMULATION:
        return None
    return Linker(name="ld.lld", command=("ld.lld", "-m", _LLD_EMULATION[arch], "-shared"))


def _debian_triple(arch: str) -> str:
    return "arm-linux-gnueabihf" if arch == "armv7l" else f"{arch}-linux-gnu"
