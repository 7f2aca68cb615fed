"""Runtime bundles: one archive with everything that a board needs to run the agent. Unpack and start.

    fleet-agent/
      run, start.py           check the machine, then run the agent
      fleet-agent.service     a systemd user unit; README.txt tells how
      bundle.json             its board and digest
      lib/                    our code, TVM's runtime without its compiler, and the packages that the agent imports

Two bundles of the same input are the same bytes: sorted, with fixed times and owners. They are kept in the cache by
the digest of their input.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cross.bundle.code import code_files
from cross.bundle.wheels import FROM_SYSTEM, Userland, fetch, kept_files, needed_libc, requirements
from cross.compile.plain_runtime import cached_plain_runtime
from cross.targets.boards import find_board
from fleet.base.config import cache_dir
from fleet.errors import ConfigError

FOLDER = "fleet-agent"
"""Folder that an archive unpacks into."""

MACHINES = ("aarch64", "armv7l", "x86_64")
_FILES = Path(__file__).with_name("files")
_EXECUTABLE = {"run"}
_TIME = 1_577_836_800
"""2020-01-01, the time of every file: zip, tar and Python's caches all accept it."""

_COMPRESSION = 0
"""xz's level. It packs 54 MB into 14.6 MB in 2.6 s; level 1 needs 5.5 s for 13.9 MB, the default, 6, 20 s for 12.2 MB.
Unpacking takes 1 MB of memory instead of 9."""

_KEPT_BUNDLES = 4
"""Per machine: every change of the code makes another bundle."""

Narrate = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A finished archive."""

    path: Path
    digest: str
    """Digest of its input, "sha256:<hex>"; also in its bundle.json."""

    userland: Userland
    size_bytes: int
    unpacked_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSpec:
    """Requirements of a bundle."""

    board: str
    """Name of the board, or of the machine, in messages."""

    title: str
    userland: Userland
    extra: tuple[str, ...] = ()
    """Packages beyond those of the agent, as "numpy"; without their own dependencies."""


def spec_for(board: str, *, python: str = "3.11", libc: str | None = None, extra: tuple[str, ...] = ()) -> BundleSpec:
    """Return the requirements for a board's name, or for a machine as `uname -m` names it ("aarch64").

    Raises:
        ConfigError: no such board, or none that an agent of ours can run on.
    """
    if board in MACHINES:
        return BundleSpec(board=board, title=board, userland=_userland(board, libc, python), extra=extra)
    try:
        found = find_board(board)
    except ConfigError as error:
        raise ConfigError(f"{error}; or name a machine: {', '.join(MACHINES)}") from None
    family, _, version = found.libc.partition(" ")
    if family != "glibc" or found.arch not in MACHINES:
        raise ConfigError(
            f"no agent runs on {board} itself ({found.title}), but on the Linux machine that it is in or connected to; "
            f"name that one: a board of 'fleet targets', or {', '.join(MACHINES)}"
        )
    return BundleSpec(
        board=board, title=found.title, userland=_userland(found.arch, libc or version, python), extra=extra
    )


def make_bundle(spec: BundleSpec, narrate: Narrate) -> Bundle:
    """Make a bundle in the cache, or find it there.

    Args:
        narrate: called with a sentence about each step.

    Raises:
        ConfigError: a package is not available, or the disk is too small.
    """
    try:
        return _make(spec, narrate)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(f"no space for the bundle in {cache_dir()}: {error.strerror}; free 300 MB there") from error


def save(bundle: Bundle, output: Path) -> None:
    """Copy a bundle to its destination atomically.

    Raises:
        ConfigError: the disk is too small, or `output` cannot be written.
    """
    folder = output.parent
    try:
        free = shutil.disk_usage(folder).free
        if free < bundle.size_bytes:
            raise ConfigError(
                f"{output}: the bundle takes {bundle.size_bytes / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
                "make room there, or name another place with -o"
            )
        with tempfile.TemporaryDirectory(dir=folder, prefix=".bundle-") as scratch:
            part = Path(scratch) / output.name
            shutil.copyfile(bundle.path, part)
            part.replace(output)
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error


def _userland(machine: str, libc: str | None, python: str) -> Userland:
    for name, version in (("--libc", libc or "2.36"), ("--python", python)):
        major, _, minor = version.partition(".")
        if not (major.isdigit() and minor.isdigit()):
            raise ConfigError(f"{name} {version}: expected a version with two numbers, as in 2.36 or 3.11")
    if tuple(map(int, python.split("."))) < (3, 11):
        raise ConfigError(f"--python {python}: the agent needs Python 3.11 or newer")
    return Userland(machine=machine, libc=libc or "2.36", python=python)


def _make(spec: BundleSpec, narrate: Narrate) -> Bundle:
    wheels = fetch(spec.userland, requirements(spec.userland, spec.extra), narrate)
    files = _bundle_files(spec, wheels)
    digest = _digest(files)
    files["bundle.json"] = describe(spec, wheels, digest)
    total = sum(map(len, files.values()))
    path = cache_dir() / "bundles" / f"{spec.userland.machine}-{digest[:16]}.tar.xz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        narrate(f"packing {len(files)} files, {total / 1e6:.0f} MB")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="packing-") as scratch:
            part = Path(scratch) / path.name
            pack(files, part)
            part.replace(path)
        _forget_old(path)
    path.touch()
    return Bundle(
        path=path,
        digest=f"sha256:{digest}",
        userland=spec.userland,
        size_bytes=path.stat().st_size,
        unpacked_bytes=total,
    )


def _forget_old(path: Path) -> None:
    machine = path.name.partition("-")[0]
    found = sorted(path.parent.glob(f"{machine}-*.tar.xz"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in found[_KEPT_BUNDLES:]:
        old.unlink(missing_ok=True)


def _bundle_files(spec: BundleSpec, wheels: list[Path]) -> dict[str, bytes]:
    """Return the content of the bundle's files by path, without bundle.json."""
    files = {f"lib/{name}": content for name, content in code_files().items()}
    for wheel in wheels:
        files |= {f"lib/{name}": content for name, content in kept_files(wheel)}
    files |= native_files(spec.userland)
    words = {
        "TITLE": spec.title,
        "MACHINE": spec.userland.machine,
        "LIBC": needed_libc(wheels),
        "PYTHON": spec.userland.python,
        "NEEDS": _needs(spec.userland),
        "CONTENTS": "".join(f"    {wheel.name.split('-')[0]} {wheel.name.split('-')[1]}\n" for wheel in wheels),
    }
    for path in sorted(_FILES.iterdir()):
        if path.is_file():
            files[path.name] = _filled(path.read_text(), words).encode()
    return files


def native_files(userland: Userland) -> dict[str, bytes]:
    """Return our own native libraries for a machine: the plain runtime, where TVM has no wheel."""
    if userland.machine != "armv7l":
        return {}
    built = cached_plain_runtime("armv7l-linux-gnueabihf")
    return {"lib/device_agents/runtimes/plain/libplain_runtime.so": built.read_bytes()}


def _needs(userland: Userland) -> str:
    packages = FROM_SYSTEM.get(userland.machine, {}).values()
    if not packages:
        return ""
    return f"\nSome packages come from the board's own system: apt install {' '.join(packages)}\n"


def describe(spec: BundleSpec, wheels: list[Path], digest: str) -> bytes:
    """Return the content of a bundle's bundle.json: its board and its parts."""
    content = {
        "board": spec.board,
        "machine": spec.userland.machine,
        "libc": needed_libc(wheels),
        "python": spec.userland.python,
        "from_system": FROM_SYSTEM.get(spec.userland.machine, {}),
        "packages": [wheel.name for wheel in wheels],
        "digest": f"sha256:{digest}",
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def _filled(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text


def _digest(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(str(_COMPRESSION).encode())
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def pack(files: Mapping[str, bytes], path: Path) -> None:
    """Write files below the folder of a bundle, byte for byte the same for the same files."""
    folders = {parent for name in files for parent in map(str, Path(FOLDER, name).parents) if parent != "."}
    with (
        lzma.open(path, "wb", preset=_COMPRESSION) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for folder in sorted(folders):
            member = tarfile.TarInfo(folder)
            member.type, member.mode, member.mtime = tarfile.DIRTYPE, 0o755, _TIME
            archive.addfile(member)
        for name, content in sorted(files.items(), key=_packing_order):
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size, member.mtime = len(content), _TIME
            member.mode = 0o755 if name in _EXECUTABLE or name.endswith(".so") else 0o644
            archive.addfile(member, io.BytesIO(content))


def _packing_order(item: tuple[str, bytes]) -> tuple[str, str]:
    """Group similar files, all libraries and then all Python files, because the archive compresses better that way."""
    return Path(item[0]).suffix, item[0]
