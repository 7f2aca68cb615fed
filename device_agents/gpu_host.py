"""What drivers of GPUs share: the host beside the GPU, whose processes are whose, and where runtime libraries lie."""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from device_agents.host import Host, slug
from device_agents.runtime_check import tvm_library_folder

_FRESH_SEC = 0.25
"""Asking for a GPU's processes takes about a millisecond: not around every candidate of a batch of quick ones."""

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The kernel's constant PROC_PID_INIT_INO: in any other namespace the driver's process ids say nothing to us."""


class ForeignProcesses:
    """Counts the processes on a GPU that are not this agent's."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._counted_at_sec = -_FRESH_SEC
        self._can_tell = _pid_namespace() == _FIRST_PID_NAMESPACE

    def count(self, list_pids: Callable[[], Iterable[int]]) -> int | None:
        """Return how many there are now; None where process ids cannot be compared, as in a container."""
        if not self._can_tell:
            return None
        now = time.monotonic()
        if now - self._counted_at_sec >= _FRESH_SEC:
            self._counted_at_sec = now
            ours = os.getpid()
            self._count = sum(not descends_from(pid, ours) for pid in list_pids())
        return self._count


def descends_from(pid: int, ancestor: int) -> bool:
    """Tell whether a process is `ancestor` or was started by it, through any number of others."""
    while pid > 1:
        if pid == ancestor:
            return True
        pid = _parent(pid)
    return pid == ancestor


def gpu_labels(host: Host, host_name: str, model: str, memory_bytes: int) -> dict[str, str]:
    """Return what selectors match of every GPU. `arch` is the host's: artifacts are libraries that it loads."""
    return {
        "arch": host.arch,
        "host": host_name,
        "model": slug(model),
        "memory_gb": str(round(memory_bytes / 1e9)),
    }


def host_target(host: Host) -> dict[str, Any]:
    """Return the TVM target of the code that launches kernels."""
    target: dict[str, Any] = json.loads(host.target_json(host.core_count))
    return target


def own_library(configured: Path | None, name: str) -> str:
    """Return the path of TVM's runtime library for a device: the user's own, else the one beside the installed TVM."""
    if configured is not None:
        return str(configured)
    folder = tvm_library_folder()
    return str(folder / name) if folder else name


def python_package_library(package: str, name: str) -> list[str]:
    """Return the path of a library that a Python package of a vendor brings, if one does; linkers know none."""
    site = Path(sysconfig.get_path("platlib")) / package
    return [str(path) for path in sorted(site.glob(f"*/lib/{name}"))[:1]]


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    # The name of the program stands in parentheses and may hold anything.
    return int(stat.rpartition(")")[2].split()[1])


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
