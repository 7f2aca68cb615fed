"""Debian 12 trees for 64- and 32-bit ARM; their programs run on this machine under qemu-user. Kept in the test cache.

    python -m tests.emulated.sysroot arm64 armhf     # prepares them, 10 to 20 s each; nothing to do the next time

Packages come through an apt root of our own, so nothing of the machine changes and no root is needed: from where this
machine's own apt gets its packages if it is a Debian 12, else from Debian's mirrors. Nothing is configured: packages
are unpacked, and the work of their scripts (links, mostly) is missing unless it is done below.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.emulated.cache import cache_dir, locked

EMULATION = Path("usr/lib/emulation")
"""In a tree: qemu, the name of the CPU, and the real programs."""

_BASE = ("dash", "coreutils", "tar", "xz-utils", "gzip", "grep", "sed", "procps", "libstdc++6", "libgomp1")
_PYTHON = ("python3.11", "python3-minimal", "python3")
_RELEASE = "bookworm"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PROGRAM_FOLDERS = ("usr/bin", "usr/sbin")
_MERGED = ("bin", "sbin", "lib")
_ENTER = Path(__file__).with_name("enter.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One Debian architecture."""

    name: str
    qemu: str
    packages: tuple[str, ...]
    machine: str
    """As `uname -m` says."""


ARCHITECTURES = {
    "arm64": Architecture(name="arm64", qemu="qemu-aarch64-static", packages=(*_BASE, *_PYTHON), machine="aarch64"),
    "armhf": Architecture(
        name="armhf",
        qemu="qemu-arm-static",
        # Packages without wheels for 32 bit come from Debian, on real boards as well.
        packages=(*_BASE, *_PYTHON, "python3-grpcio", "python3-cryptography", "python3-yaml", "python3-psutil"),
        machine="armv7l",
    ),
}


def sysroot(name: str) -> Path:
    """Return the tree of one architecture ("arm64", "armhf"), prepared if need be. It is shared: do not write to it.

    Raises:
        RuntimeError: names the missing program and its package.
    """
    architecture = ARCHITECTURES[name]
    qemu = _needed_program(architecture.qemu, "qemu-user-static")
    for program, package in (("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("gcc", "gcc"), ("tar", "tar")):
        _needed_program(program, package)
    with locked(f"sysroot-{name}"):
        tree = cache_dir() / "sysroots" / f"{name}-{_recipe_digest(architecture, qemu)}"
        if not tree.exists():
            tree.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=tree.parent, prefix=f"{name}-") as scratch:
                _build(architecture, qemu, Path(scratch)).rename(tree)
    return tree


def _recipe_digest(architecture: Architecture, qemu: Path) -> str:
    """Return a digest of all inputs of a tree; packages count by name, as a stable release changes them only for
    security.
    """
    digest = hashlib.sha256()
    for text in (repr(architecture), Path(__file__).read_text(), _ENTER.read_text(), str(qemu.stat().st_size)):
        digest.update(text.encode())
    digest.update(repr(_apt_sources()).encode())
    return digest.hexdigest()[:12]


def _build(architecture: Architecture, qemu: Path, scratch: Path) -> Path:
    tree = scratch / "tree"
    for folder in (*_MERGED, "tmp", "proc", "sys", "dev/shm", "run", "root", "home", "etc", "var/tmp"):
        if folder in _MERGED:
            (tree / "usr" / folder).mkdir(parents=True)
            (tree / folder).symlink_to(f"usr/{folder}")
        else:
            (tree / folder).mkdir(parents=True)
    for package in _download(architecture, scratch / "apt"):
        _unpack(package, tree)
    _finish_by_hand(tree)
    _put_qemu_before_programs(qemu, tree)
    _compile_library(tree, architecture)
    return tree


def _download(architecture: Architecture, root: Path) -> list[Path]:
    """Download the packages and all that they depend on, for a machine that has none."""
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/sources.list.d"):
        (root / folder).mkdir(parents=True)
    (root / "status").touch()
    for name, content in _apt_sources().items():
        (root / "etc/sources.list.d" / name).write_text(content)
    settings = {
        "APT::Architecture": architecture.name,
        "APT::Architectures": architecture.name,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root" if os.geteuid() == 0 else "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Debug::NoLocking": "true",
        "Dir::State": str(root / "state"),
        "Dir::State::status": str(root / "status"),
        "Dir::Cache": str(root / "cache"),
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": str(root / "etc/sources.list.d"),
    }
    options = [word for key, value in settings.items() if value for word in ("-o", f"{key}={value}")]
    _run("apt-get", *options, "--quiet", "update", what=f"cannot read the package lists for {architecture.name}")
    _run(
        "apt-get", *options, "--quiet", "--yes", "--download-only", "install", *architecture.packages,
        what=f"cannot download packages for {architecture.name}",
    )  # fmt: skip
    return sorted((root / "cache/archives").glob("*.deb"))


def _unpack(package: Path, tree: Path) -> None:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as unpacking:
        _run(
            # Packages still bring /bin and /lib as folders; the tree has them as links into /usr.
            "tar", "-x", "--keep-directory-symlink", "--no-same-owner", "-C", str(tree),
            stdin=unpacking.stdout, what=f"cannot unpack {package.name}",
        )  # fmt: skip
    if unpacking.returncode:
        raise RuntimeError(f"cannot unpack {package.name}: dpkg-deb ended with {unpacking.returncode}")


def _finish_by_hand(tree: Path) -> None:
    """Do the few steps of the packages' scripts that programs need."""
    shell = tree / "usr/bin/sh"
    if not shell.is_symlink():
        shell.symlink_to("dash")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")
    for folder in ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"):
        shutil.rmtree(tree / folder, ignore_errors=True)


def _put_qemu_before_programs(qemu: Path, tree: Path) -> None:
    emulation = tree / EMULATION
    emulation.mkdir()
    shutil.copy(qemu, emulation / "qemu")
    (emulation / "cpu").write_text("max\n")
    enter = emulation / "enter"
    _run("gcc", "-O1", "-static", "-s", "-o", str(enter), str(_ENTER), what="cannot build enter.c (package libc6-dev)")
    for folder in _PROGRAM_FOLDERS:
        for program in sorted((tree / folder).iterdir()):
            if not program.is_symlink() and program.is_file() and program.read_bytes()[:4] == b"\x7fELF":
                place = emulation / "programs" / folder / program.name
                place.parent.mkdir(parents=True, exist_ok=True)
                program.rename(place)
                program.hardlink_to(enter)


def _compile_library(tree: Path, architecture: Architecture) -> None:
    """Compile Python's library: half of an emulated interpreter's start otherwise. Any Python 3.11 writes the same."""
    from tests.emulated.board import EmulatedBoard

    board = EmulatedBoard(root=tree, machine=architecture.machine)
    done = board.run("python3", "-m", "compileall", "-q", "-x", "/(test|lib2to3)/", "/usr/lib/python3.11")
    (tree / "usr/lib/emulation/compiled").write_text(done.stdout + done.stderr)
    if "3.11" not in board.run("python3", "--version").stdout:
        raise RuntimeError(f"the emulated python3 of {architecture.name} does not run: {done.stderr[-500:]}")


def _apt_sources() -> dict[str, str]:
    """Return the sources of Debian's main archive, file name to content.

    Without the security archive: nothing here faces a network, and the lists of its rarer architectures are at times
    out of step with its mirrors for hours.
    """
    if platform.freedesktop_os_release().get("VERSION_CODENAME") != _RELEASE:
        mirror = os.environ.get("DEBIAN_MIRROR")
        if not mirror:
            raise RuntimeError(
                f"emulated boards need packages of Debian {_RELEASE}: set DEBIAN_MIRROR to a mirror's URL"
            )
        return {"debian.list": f"deb [signed-by={_KEYRING}] {mirror} {_RELEASE} main\n"}
    folder = Path("/etc/apt")
    sources = {}
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources") or not path.is_file():
            continue
        parts = re.split(r"\n\s*\n" if path.suffix == ".sources" else r"\n", path.read_text())
        kept = [
            part for part in parts if re.search(r"^(URIs:|deb) .*debian", part, re.MULTILINE) and "security" not in part
        ]
        if kept:
            sources[path.name] = "\n\n".join(kept) + "\n"
    if not sources:
        raise RuntimeError("no Debian package sources in /etc/apt: emulated boards are made from Debian's packages")
    return sources


def _needed_program(name: str, package: str) -> Path:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed, which emulated boards need: apt-get install {package}")
    return Path(found)


def _run(*words: str, what: str, stdin: object = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, stdin=stdin, check=False)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{what}: {words[0]} ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return str(done.stdout)


def main(names: list[str]) -> int:
    """Prepare the named trees, or all."""
    for name in names or sorted(ARCHITECTURES):
        print(f"{name}: {sysroot(name)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
