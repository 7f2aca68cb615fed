"""The few Linux features that Python does not wrap: prctl, and the process tree."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_READ_BYTES = 64 * 1024
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))


def adopt_orphans() -> bool:
    """Become the parent of every orphaned descendant, instead of init.

    Return False where the system does not support this (qemu-user 7 does not): orphans of a crashed kernel then go to
    init.
    """
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        logger.warning("orphans cannot be adopted on this system")
        return False
    return True


def children_of(pid: int) -> list[int]:
    """Return the children of `pid`, including zombies."""
    found: list[int] = []
    try:
        with os.scandir(f"/proc/{pid}/task") as threads:
            for thread in threads:
                found.extend(map(int, _read(f"{thread.path}/children").split()))
    except FileNotFoundError:
        # Either the process has ended, or the kernel was built without CONFIG_PROC_CHILDREN.
        return [child for child, parent in _parents() if parent == pid]
    except (ProcessLookupError, PermissionError):
        return []
    return found


def descendants_of(pid: int, *, at_most: int | None = None) -> list[int]:
    """Return all descendants of `pid`; stop soon after `at_most` of them."""
    found: list[int] = []
    waiting = [pid]
    while waiting and (at_most is None or len(found) <= at_most):
        children = children_of(waiting.pop())
        found.extend(children)
        waiting.extend(children)
    return found


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        # Plain os calls because this is read after every candidate: Path takes three times as long.
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    try:
        fields = os.read(descriptor, 256).split()
    except ProcessLookupError:
        return 0
    finally:
        os.close(descriptor)
    return int(fields[1]) * _PAGE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """State of one process, from the kernel."""

    pid: int
    state: str
    """One letter, see proc(5): "R", "S", "D" (waits in the kernel), "T" (stopped), "Z" (ended, not reaped)."""

    parent: int
    session: int
    started_ticks: int
    """Start time since boot: together with `pid` it identifies a process uniquely."""


def look_at(pid: int) -> Process | None:
    """Return the state of a process, or None if it does not exist."""
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The process chooses the command in brackets: it may contain spaces, brackets and undecodable bytes.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(
        pid=pid, state=fields[0], parent=int(fields[1]), session=int(fields[3]), started_ticks=int(fields[19])
    )


def is_running(pid: int) -> bool:
    """Tell whether a process has not ended."""
    process = look_at(pid)
    return process is not None and process.state not in "ZX"


def waits_in(pid: int) -> str:
    """Return the kernel function in which a process sleeps; empty if the kernel does not report it."""
    try:
        return (_PROC / str(pid) / "wchan").read_text().strip("0")
    except OSError:
        return ""


def kill(pid: int) -> None:
    """Send SIGKILL unless the process has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _read(path: str) -> str:
    """Return the content of a file. By pathlib it takes three times as long, and each worker needs dozens."""
    descriptor, parts = os.open(path, os.O_RDONLY | os.O_CLOEXEC), list[bytes]()
    try:
        while part := os.read(descriptor, _READ_BYTES):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def _parents() -> list[tuple[int, int]]:
    processes = (look_at(int(entry.name)) for entry in _PROC.iterdir() if entry.name.isdigit())
    return [(process.pid, process.parent) for process in processes if process is not None]


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
