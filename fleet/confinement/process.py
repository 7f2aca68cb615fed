"""Permanent confinement of this process: allowlisted files, one writable folder, no network, limited memory.

For untrusted code that runs while a file is read, such as unpickling a model. It needs no privileges, so that it works
in a running process. Kernels run in `device_agents.jail`, which adds namespaces.
"""

from __future__ import annotations

import os
import pwd
import resource
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fleet.confinement import landlock, privileges, seccomp

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/gnu")
_FACTS = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/passwd"),
    *("/etc/alternatives", "/etc/nsswitch.conf", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat"),
    *("/proc/sys/vm", "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup"),
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_MEMORY_PART = 0.75
"""Share of the machine's memory that the address space may grow by."""

_MOST_FILE_BYTES = 64 * 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedFiles:
    """Allowlist of a confined process, in addition to system programs and libraries, Python and this project."""

    readable: tuple[str, ...] = ()
    """Absolute paths of files and folders."""

    writable: tuple[str, ...] = ()


def missing_features() -> list[str]:
    """Return descriptions of the confinement features that this machine lacks."""
    found = []
    try:
        landlock.version()
    except OSError as error:
        found.append(f"rules for files (Landlock: {error.strerror})")
    if not seccomp.is_known():
        found.append("filters of system calls (seccomp)")
    return found


def confine(allowed: AllowedFiles, own_folder: str) -> None:
    """Confine this process and its future children. Missing kernel features are skipped; see `missing_features`.

    Args:
        own_folder: writable folder, used for temporary files and as home.

    Raises:
        OSError: the kernel refuses to apply a feature that it has.
    """
    os.environ.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    os.environ.update(TMPDIR=own_folder, HOME=own_folder, XDG_CACHE_HOME=own_folder)
    tempfile.tempdir = own_folder
    lacking = missing_features()
    _limit()
    privileges.drop_capabilities()
    privileges.forbid_new_privileges()
    if not any("Landlock" in part for part in lacking):
        readable = [*_SYSTEM, *_FACTS, *_python(), *allowed.readable]
        landlock.restrict(readable, [own_folder, *allowed.writable, *_DEVICES], has_network=False)
    if seccomp.is_known():
        seccomp.restrict(has_sockets=False)


def _python() -> list[str]:
    """Return the folders of Python, installed packages and this project, without the script's folder."""
    project = Path(__file__).resolve().parents[1]
    ours = [str(project), str(project.with_name("cross")), str(project.with_name("device_agents"))]
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)  # $HOME is already another folder
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    installed = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    installed += [path for path in named if path.startswith("/") and Path(path) not in (Path("/"), home)]
    return [*ours, *installed, sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()]


def _limit() -> None:
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = used_pages * page_bytes + int(_MEMORY_PART * pages * page_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
