"""Checks what a worker and its children use of the machine against their limits."""

from __future__ import annotations

import os
from dataclasses import dataclass

from device_agents.machine import linux
from fleet.domain.measuring import ErrorKind

SAMPLE_SEC = 0.1
"""How often a worker is checked while it runs a candidate."""

_MAX_PROCESSES = 256
_MAX_FILES = 10_000
"""More than any kernel needs, and few enough that looking at them does not hold up the agent."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What one worker, its children included, may use."""

    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """More than a worker may use."""

    kind: ErrorKind
    message: str


def find_excess(pid: int, directory: str, limits: WorkerLimits) -> Excess | None:
    """Check a worker once: a few small reads from /proc, and a look at its directory."""
    family = (pid, *linux.descendants_of(pid, at_most=_MAX_PROCESSES))
    if len(family) > _MAX_PROCESSES:
        return Excess(kind=ErrorKind.OUT_OF_MEMORY, message=f"started more than {_MAX_PROCESSES} processes")
    memory = sum(map(linux.resident_bytes, family))
    if memory > limits.memory_bytes:
        return Excess(
            kind=ErrorKind.OUT_OF_MEMORY,
            message=f"held {memory // _MIB} MiB; the limit is {limits.memory_bytes // _MIB} MiB",
        )
    files, disk = count_files(directory, at_most=_MAX_FILES)
    if files > _MAX_FILES:
        return Excess(kind=ErrorKind.OUT_OF_DISK, message=f"made more than {_MAX_FILES} files")
    if disk > limits.disk_bytes:
        return Excess(
            kind=ErrorKind.OUT_OF_DISK,
            message=f"wrote {disk // _MIB} MiB; the limit is {limits.disk_bytes // _MIB} MiB",
        )
    return None


def count_files(directory: str, *, at_most: int) -> tuple[int, int]:
    """Return how many files lie below a directory and what they take on disk [bytes]; stop soon after `at_most` files.

    Files that vanish meanwhile count as nothing.
    """
    count = total = 0
    waiting = [directory]
    while waiting and count <= at_most:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > at_most:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return count, total
