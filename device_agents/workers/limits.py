"""Checks a worker's and its children's use of the machine against their limits."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agents.machine import linux
from fleet.domain.measuring import ErrorKind

SAMPLE_SEC = 0.1
"""Interval of checks."""

MAX_PROCESSES = 256
"""Limit of processes per worker."""

_MAX_FILES = 10_000
"""Well above the need of any kernel, and small enough to count without delaying the agent."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Limits of one worker including its children."""

    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """Exceeded limit of a worker."""

    kind: ErrorKind
    message: str


def find_excess(family: Sequence[int], home: str, limits: WorkerLimits, in_memory: Iterable[str] = ()) -> Excess | None:
    """Check a worker and its children, by process ids: a few small reads from /proc, and a look at its home.

    Args:
        in_memory: its own file systems that lie in memory.
    """
    if len(family) > MAX_PROCESSES:
        return Excess(kind=ErrorKind.OUT_OF_MEMORY, message=f"started more than {MAX_PROCESSES} processes")
    try:
        files, disk = count_files(home, at_most=_MAX_FILES)
    except OSError as error:
        # Otherwise its content would count as empty: a folder that is too deep for a path, or that the worker made
        # unreadable.
        return Excess(kind=ErrorKind.OUT_OF_DISK, message=f"made folders that nobody can look into ({error.strerror})")
    unlinked = _unlinked_files(family)
    home_device = _device_of(home)
    memory = sum(map(linux.resident_bytes, family))
    memory += sum(size for (device, _), size in unlinked.items() if device != home_device)
    memory += sum(map(_used_bytes, in_memory))
    if memory > limits.memory_bytes:
        return Excess(
            kind=ErrorKind.OUT_OF_MEMORY,
            message=f"held {memory // _MIB} MiB; the limit is {limits.memory_bytes // _MIB} MiB",
        )
    if files > _MAX_FILES:
        return Excess(kind=ErrorKind.OUT_OF_DISK, message=f"made more than {_MAX_FILES} files")
    disk += sum(size for (device, _), size in unlinked.items() if device == home_device)
    if disk > limits.disk_bytes:
        return Excess(
            kind=ErrorKind.OUT_OF_DISK,
            message=f"wrote {disk // _MIB} MiB; the limit is {limits.disk_bytes // _MIB} MiB",
        )
    return None


def count_files(directory: str, *, at_most: int) -> tuple[int, int]:
    """Return number and size on disk [bytes] of the files below a directory; stop soon after `at_most` files.

    Files that vanish meanwhile count as nothing.

    Raises:
        OSError: a directory cannot be looked into.
    """
    count = total = 0
    waiting = [directory]
    while waiting and count <= at_most:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if count > at_most:
                    break
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return count, total


def _unlinked_files(family: Iterable[int]) -> dict[tuple[int, int], int]:
    """Return the sizes of open files without a name [bytes], by device and inode: on the disk, or in memory."""
    found: dict[tuple[int, int], int] = {}
    for pid in family:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = Path(entry.path).stat()  # status of the link's target
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 0:
                        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return found


def _used_bytes(file_system: str) -> int:
    try:
        status = os.statvfs(file_system)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _device_of(path: str) -> int:
    try:
        return Path(path).stat().st_dev
    except OSError:
        return -1
