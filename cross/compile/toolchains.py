"""Finds a linker for a target and turns object files into a shared library.

A TVM module needs next to nothing from the linker, so each takes its fast path: no default libraries to search, no
start files. Measured, warm: `gcc -shared` 10 ms, with `-nostdlib` 6, `ld.lld` 20-35, `zig cc -nostdlib` 12-16. So
Android's modules need no NDK: they are plain 64-bit ARM libraries, and the process that loads them has their few
symbols.

The linker is the one named by the caller; by $FLEET_LINKER_X86_64, _AARCH64, _ARMV7L, _RISCV64 or _ANDROID; by the file
$FLEET_CROSS_CONFIG, else tvm-fleet/cross.yaml in $XDG_CONFIG_HOME or ~/.config:

    linkers:
      aarch64: aarch64-linux-gnu-gcc
      android: ld.lld -m aarch64linux

else the first that is found of: `<triple>-gcc` and, for this machine's own architecture, gcc, cc, clang; the Python
package ziglang; `ld.lld`.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cross.compile.tools import debian_triple, run_tool, zig
from cross.targets.target import Target
from fleet.artifacts.elf import arm_float_abi, read_header, undefined_symbols
from fleet.base.config import cross_config_file, parse, read_yaml
from fleet.base.source_locations import at
from fleet.errors import BuildError, ConfigError

_LINK_TIMEOUT_SEC = 60.0
_LLD_EMULATION = {
    "x86_64": "elf_x86_64",
    "aarch64": "aarch64linux",
    "armv7l": "armelf_linux_eabi",
    "riscv64": "elf64lriscv",
}
_ZIG_ARCH = {"armv7l": "arm"}
_BIONIC = re.compile(
    r"mem(cpy|move|set|cmp)|malloc|calloc|free|abort|str(len|cmp)|__stack_chk_fail|__errno|"
    r"(a?(sin|cos|tan)h?|atan2|exp2?|exp10|expm1|log(2|10|1p)?|pow|sqrt|cbrt|erfc?|[lt]gamma|floor|ceil|round|roundeven|"
    r"rint|nearbyint|trunc|fabs|fmod|fma|fmin|fmax|hypot|ldexp|frexp|copysign|nextafter|remainder)[fl]?"
)
"""Names in Android's libc and libm that generated code asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Linker:
    """A command that links objects to a shared library when given `-o OUTPUT OBJECT...` and its libraries."""

    name: str
    """Name in messages and in the artifact's facts: "gcc", "ld.lld"."""

    command: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    """Arguments after the objects that may need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossConfig:
    """cross.yaml; see the module's docstring."""

    linkers: dict[str, str] = field(default_factory=dict)


def find_linker(target: Target, explicit: str | None = None) -> Linker:
    """Return the linker for a target; see the module's docstring for the order.

    Raises:
        ConfigError: there is none, and the message names the package to install; or one that was named is not on PATH.
    """
    named, where = (explicit, "--linker") if explicit else _configured(platform_of(target))
    if named:
        return _named(named, where)
    found = find_linkers(target)
    if found:
        return found[0]
    arch, wanted = target.arch, target.triple
    compiler = "" if "android" in wanted else f"{wanted or f'{arch}-linux-gnu'}-gcc, "
    raise ConfigError(
        f"no linker for {platform_of(target)}: install {compiler}lld (ld.lld), or the Python package ziglang; "
        f"or name one in ${_variable(platform_of(target))}"
    )


def find_linkers(target: Target) -> list[Linker]:
    """Return the suitable linkers of this machine for a target, best first."""
    arch, target_triple = target.arch, target.triple
    others = (_find_zig(arch), _find_lld(arch))
    return [*_find_compilers(arch, target_triple), *(linker for linker in others if linker is not None)]


def platform_of(target: Target) -> str:
    """Return the key of a linker in the configuration: the architecture, or "android"."""
    return "android" if "android" in target.triple else target.arch


def check_linked(library: bytes, target: Target, linker: Linker) -> None:
    """Check that a linked library is for its target: a linker for another machine may fail silently.

    Raises:
        BuildError: it is not.
    """
    header, arch = read_header(library), target.arch
    if header is None or header.machine != arch:
        made = header.machine if header else "something that is no ELF file"
        raise BuildError(f"the linker {linker.name} made {made} when asked for {arch}; name another with --linker")
    if arch == "armv7l" and arm_float_abi(library) == "soft":
        raise BuildError(f"the linker {linker.name} made a soft-float library; name another with --linker")
    if platform_of(target) == "android":
        _check_android_symbols(undefined_symbols(library))


def link(linker: Linker, objects: Sequence[Path], output: Path) -> None:
    """Link objects to the shared library `output`.

    Raises:
        BuildError: the linker failed, hung or made no library; the message has its name, command and last lines.
    """
    command = [*linker.command, "-o", str(output), *map(str, objects), *linker.libraries]
    try:
        run_tool(command, _LINK_TIMEOUT_SEC)
    except BuildError as error:
        raise BuildError(f"the linker {linker.name} failed: {error}", error.kind) from error
    if not output.is_file() or not output.stat().st_size:
        raise BuildError(
            f"the linker {linker.name} ended without an error and made no library; name another with --linker: "
            f"{shlex.join(command)}"
        )


def _check_android_symbols(undefined: frozenset[str]) -> None:
    """Refuse symbols that a phone's linker cannot resolve: it has the C library and TVM, but no compiler runtime."""
    unknown = [name for name in undefined if not name.startswith("TVM") and not _BIONIC.fullmatch(name)]
    if unknown:
        raise BuildError(
            f"the library needs {', '.join(sorted(unknown))}, which Android does not have; link it with the NDK's "
            "clang: --linker .../toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android24-clang"
        )


def _named(command_line: str, where: str) -> Linker:
    try:
        command = tuple(shlex.split(command_line))
    except ValueError as error:
        raise ConfigError(f"the linker {command_line!r} (from {where}) is no command: {error}") from error
    if not command or shutil.which(command[0]) is None:
        raise ConfigError(f"the linker {command_line.split(' ')[0]!r} (from {where}) is not on PATH")
    return Linker(name=Path(command[0]).name, command=(*command, "-shared"))


def _configured(platform_name: str) -> tuple[str | None, str]:
    """Return the linker that the user configured for a platform, and the place of the setting."""
    variable = _variable(platform_name)
    if os.environ.get(variable):
        return os.environ[variable], f"${variable}"
    path = cross_config_file()
    if not os.environ.get("FLEET_CROSS_CONFIG") and not path.exists():
        return None, ""
    values, place = read_yaml(path)
    found = parse(CrossConfig, values, where=place).linkers.get(platform_name)
    return (str(found) if found else None), at(place, "linkers", platform_name)


def _variable(platform_name: str) -> str:
    return f"FLEET_LINKER_{platform_name.upper()}"


def _find_compilers(arch: str, target_triple: str) -> list[Linker]:
    if "android" in target_triple:
        return []  # other compilers bring another C library than Android's
    names = [f"{target_triple}-gcc"] if target_triple else []
    if "musl" not in target_triple:
        names.append(f"{debian_triple(arch)}-gcc")
        names += ["gcc", "cc", "clang"] if platform.machine() == arch else []
    found = dict.fromkeys(name for name in names if shutil.which(name))
    return [_compiler(name) for name in found]


def _compiler(name: str) -> Linker:
    if not name.endswith("gcc"):
        return Linker(name=name, command=(name, "-shared"))
    # Every process that loads a module has the C library, but not the compiler's runtime functions.
    return Linker(name=name, command=(name, "-shared", "-nostdlib"), libraries=("-lgcc",))


def _find_zig(arch: str) -> Linker | None:
    abi = "musleabihf" if arch == "armv7l" else "musl"
    zig_target = f"{_ZIG_ARCH.get(arch, arch)}-linux-{abi}"
    command = zig("cc", "-target", zig_target, "-nostdlib", "-shared")
    return Linker(name="ziglang", command=command) if command else None


def _find_lld(arch: str) -> Linker | None:
    if shutil.which("ld.lld") is None or arch not in _LLD_EMULATION:
        return None
    return Linker(name="ld.lld", command=("ld.lld", "-m", _LLD_EMULATION[arch], "-shared"))
