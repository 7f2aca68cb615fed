"""Python packages of a board's bundle: the list, their download for a foreign machine, and their kept files.

pip downloads wheels for any platform when it is told each tag that the platform accepts: glibc 2.31 accepts everything
from manylinux_2_31 down. Versions are those of this environment, so that a bundle has the tested ones.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fleet.base.config import cache_dir
from fleet.domain.tvm_versions import KNOWN_PAIRS
from fleet.errors import ConfigError

_TVM, _TVM_FFI = list(KNOWN_PAIRS.items())[-1]
_NATIVE = ("cffi", "cryptography", "grpcio", "protobuf", "psutil", "PyYAML", "typing_extensions")
_DISCOVERY = ("ifaddr", "zeroconf")
_PURE = ("protobuf", "typing_extensions")

FROM_SYSTEM = {
    "armv7l": {
        "grpc": "python3-grpcio",
        "cryptography": "python3-cryptography",
        "yaml": "python3-yaml",
    }
}
"""Machines for which PyPI has no wheels that run: module to the Debian package that brings it. grpcio's armv7l wheels
are built for ARMv7VE and die of an illegal instruction on a Cortex-A9."""

_DROPPED = re.compile(
    r"(^|/)(tests?|testing|__pycache__)/|\.(pyi|pyx|pxd|pxi|h|hpp|c|cc|cpp|cu|proto|cmake|dist)$|\.dist-info/(licenses/|.*entry_points)"
    r"|^tvm_ffi/(3rdparty|include|src|share|cython|stub)/|^cffi/_|(^|/)py\.typed$|CMakeLists"
)
_TVM_KEPT = re.compile(r"^tvm/lib/libtvm_runtime(_extra)?\.so$|\.dist-info/METADATA$")
"""Kept parts of TVM's 95 MB: its runtime libraries, and the metadata with its version."""

_OLDEST_LIBC_MINOR = 17
_LIBC_OF_TAG = re.compile(r"manylinux_2_(\d+)_")
_DOWNLOAD_SEC = 900
_SCRATCH = "download-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Userland:
    """Platform of a bundle."""

    machine: str
    """Architecture as `uname -m` names it: "aarch64", "armv7l", "x86_64"."""

    libc: str = "2.36"
    """glibc's version there, or an older one."""

    python: str = "3.11"

    @property
    def tags(self) -> list[str]:
        """Wheel platforms that it accepts, the newest first."""
        minor = int(self.libc.split(".")[1])
        ladder = [f"manylinux_2_{number}_{self.machine}" for number in range(minor, _OLDEST_LIBC_MINOR - 1, -1)]
        return [*ladder, f"manylinux2014_{self.machine}"]


def requirements(userland: Userland, extra: Sequence[str] = ()) -> list[str]:
    """Return the packages, each with its version.

    Raises:
        ConfigError: one of `extra` is not installed here, so no tested version of it is known.
    """
    if userland.machine in FROM_SYSTEM:
        return [*_pinned(_PURE), *_pinned(extra)]
    pair = [f"apache-tvm=={_TVM}", f"apache-tvm-ffi=={_TVM_FFI}"]
    return [*pair, *_pinned(_NATIVE), *_pinned(_DISCOVERY), *_pinned(extra)]


def fetch(
    userland: Userland,
    wanted: Sequence[str],
    narrate: Callable[[str], None],
    *,
    download: Callable[[Userland, Sequence[str], Path], None] | None = None,
) -> list[Path]:
    """Return the wheels, downloaded once and then kept in the cache.

    Args:
        download: puts the wheels into a folder; None: with pip.

    Raises:
        ConfigError: pip is missing, or a package has no wheel for the platform.
        OSError: the disk is full.
    """
    key = hashlib.sha256(repr((userland, sorted(wanted))).encode()).hexdigest()[:12]
    folder = cache_dir() / "wheels" / f"{userland.machine}-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear(folder.parent)
        narrate(f"downloading {len(wanted)} packages for {userland.machine}, Python {userland.python}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_SCRATCH) as scratch:
            (download or _download)(userland, wanted, Path(scratch))
            _move_in_place(Path(scratch), folder)
    return sorted(folder.glob("*.whl"))


def needed_libc(wheels: Sequence[Path]) -> str:
    """Return the oldest glibc that all the wheels run with. A wheel may name several; its oldest counts."""
    oldest_of_each = [min(map(int, found)) for wheel in wheels if (found := _LIBC_OF_TAG.findall(wheel.name))]
    return f"2.{max([_OLDEST_LIBC_MINOR, *oldest_of_each])}"


def kept_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of a wheel's files that the agent needs.

    Raises:
        ConfigError: the wheel would write outside its folder on the board.
    """
    is_tvm = wheel.name.startswith("apache_tvm-")
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith("/") or ".." in name.split("/"):
                raise ConfigError(
                    f"{wheel.name} holds {name!r}, which no package does; remove {wheel} and get it again"
                )
            is_kept = _TVM_KEPT.search(name) if is_tvm else not _DROPPED.search(name)
            if is_kept and not name.endswith("/"):
                yield name, archive.read(name)


def _pinned(names: Sequence[str]) -> list[str]:
    pinned = []
    for name in names:
        try:
            pinned.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            raise ConfigError(
                f"{name} is not installed here, so the bundle would hold an untested version; pip install {name}"
            ) from None
    return pinned


def _clear(folder: Path) -> None:
    """Remove the remains of killed downloads, 100 MB each. Skip recent ones, which may be in progress."""
    for leftover in folder.glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            if time.time() - leftover.stat().st_mtime > 2 * _DOWNLOAD_SEC:
                shutil.rmtree(leftover)


def _download(userland: Userland, wanted: Sequence[str], folder: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(f"bundles are made with pip, which {sys.executable} does not have: python -m ensurepip")
    abi = "cp" + userland.python.replace(".", "")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    words += ["--disable-pip-version-check", "--dest", str(folder), "--implementation", "cp"]
    words += ["--python-version", userland.python]
    for name in (abi, "abi3", "none"):
        words += ["--abi", name]
    # pip requires a platform even for packages without native code, which fit any.
    for tag in userland.tags:
        words += ["--platform", tag]
    try:
        done = subprocess.run([*words, *wanted], capture_output=True, text=True, timeout=_DOWNLOAD_SEC, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"downloading packages took longer than {_DOWNLOAD_SEC} s; try again") from None
    if done.returncode == 0:
        return
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    if "No space left" in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "connection broken" in done.stderr:
        raise ConfigError("pip does not reach its package index; check the network, or name another in PIP_INDEX_URL")
    raise ConfigError(
        f"no packages for {userland.machine}, glibc {userland.libc}, Python {userland.python}: "
        + "; ".join(re.sub(r" \(from versions: .*?\)", "", line.removeprefix("ERROR: ")) for line in errors[-2:])
    )


def _move_in_place(scratch: Path, folder: Path) -> None:
    """Publish the finished download atomically. Another process may have published it first."""
    ready = scratch.with_name(f"{scratch.name}-ready")
    shutil.copytree(scratch, ready, copy_function=shutil.move)
    try:
        ready.rename(folder)
    except OSError:
        shutil.rmtree(ready, ignore_errors=True)
        if not folder.exists():
            raise
