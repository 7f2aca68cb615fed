"""Builds the native part of device_agents.runtimes.plain for a board: one C file, about 10 KB as a shared library.

    build_plain_runtime("armv7l-linux-gnueabihf", Path("libplain_runtime.so"))

It is compiled by gcc on the board itself, by <triple>-gcc, or by zig, which brings the C libraries of all of them, and
kept in the cache by the digest of its sources.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
import shutil
import tempfile
from pathlib import Path

from cross.compile.tools import debian_triple, run_tool, zig
from fleet.base.config import cache_dir
from fleet.errors import ConfigError

SOURCE = Path(__file__).resolve().parents[2] / "device_agents/runtimes/plain/plain_runtime.c"
_FLAGS = ("-O2", "-fPIC", "-shared", "-s", "-pthread")
_LIBRARIES = ("-lpthread", "-ldl")
_GLIBC = "2.28"
"""Oldest C library to run with: Debian 10, Ubuntu 18.10. zig links for exactly the functions that it had."""

_TIMEOUT_SEC = 180.0
"""zig builds the C library's stubs at its first use."""

_ZIG_TARGETS = {
    # Every ARMv7 core with hardware floating point runs code for this one.
    "armv7l": ("arm-linux-gnueabihf", "-mcpu=cortex_a9"),
    "aarch64": ("aarch64-linux-gnu",),
    "x86_64": ("x86_64-linux-gnu",),
}


def build_plain_runtime(triple: str, out: Path) -> Path:
    """Build the library for a triple ("armv7l-linux-gnueabihf"; empty: this machine) at `out`, and return that.

    Raises:
        ConfigError: no compiler for it.
        BuildError: it did not compile.
    """
    shared = cached_plain_runtime(triple)
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(shared, out)
    return out


def cached_plain_runtime(triple: str = "") -> Path:
    """Return the library in the cache, building it if need be. The file is shared: do not write to it."""
    command = compiler(triple)
    digest = hashlib.sha256(SOURCE.read_bytes() + shlex.join(command).encode()).hexdigest()[:16]
    kept = cache_dir() / "plain-runtime" / f"{digest}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            fresh = Path(scratch) / "libplain_runtime.so"
            run_tool([*command, "-o", str(fresh), str(SOURCE), *_LIBRARIES], _TIMEOUT_SEC)
            fresh.replace(kept)
    return kept


def compiler(triple: str) -> list[str]:
    """Return the command that compiles and links for a triple, without its files.

    Raises:
        ConfigError: there is none.
    """
    arch = triple.partition("-")[0] or platform.machine()
    debian = debian_triple(arch)
    names = [f"{triple}-gcc", f"{debian}-gcc"] if triple else []
    if arch == platform.machine():
        names += ["gcc", "cc", "clang"]
    found = next((name for name in names if shutil.which(name)), None)
    if found is not None:
        return [found, *_FLAGS]
    if arch in _ZIG_TARGETS:
        zig_target, *more = _ZIG_TARGETS[arch]
        command = zig("cc", "-target", f"{zig_target}.{_GLIBC}", *more, *_FLAGS)
        if command is not None:
            return list(command)
    raise ConfigError(f"no C compiler for {arch}: install gcc-{debian.replace('_', '-')} or the Python package ziglang")
