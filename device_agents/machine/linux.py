"""The few Linux features that Python does not wrap: prctl, and the process tree."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from pathlib import Path

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, int(signal_number))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of init.

    If the system does not support this (qemu-user 7 does not), what a crashed kernel leaves behind goes to init.
    """
    try:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        logger.warning("orphans cannot be adopted on this system")


def children_of(pid: int) -> list[int]:
    """Return the processes whose parent is `pid`, zombies included."""
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found.extend(map(int, (thread / "children").read_text().split()))
    except FileNotFoundError:
        # Either the process is gone, or the kernel was built without CONFIG_PROC_CHILDREN.
        return [child for child, parent in _parents() if parent == pid]
    except (ProcessLookupError, PermissionError):
        return []
    return found


def descendants_of(pid: int, *, at_most: int | None = None) -> list[int]:
    """Return the children of `pid`, their children, and so on; stop soon after `at_most` of them."""
    found: list[int] = []
    waiting = [pid]
    while waiting and (at_most is None or len(found) <= at_most):
        children = children_of(waiting.pop())
        found.extend(children)
        waiting.extend(children)
    return found


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds now; 0 when it is gone."""
    try:
        # Plain os calls: read after every candidate, and Path takes three times as long.
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


def environment_of(pid: int) -> bytes:
    """Return the environment that a process was started with, entries ended by NUL; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _parents() -> list[tuple[int, int]]:
    pairs = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The command in brackets may hold spaces and brackets itself.
        pairs.append((int(entry.name), int(stat[stat.rindex(")") + 2 :].split()[1])))
    return pairs


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
