"""What a worker and its children use of the machine, against what they may."""

from __future__ import annotations

import os
from dataclasses import dataclass

from device_agents import linux
from fleet.v1 import measurement_pb2

SAMPLE_SEC = 0.1
"""How often a worker that runs a candidate is looked at."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one worker, its children included, may use."""

    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """More than a worker may use."""

    kind: measurement_pb2.ErrorKind
    message: str


def find_excess(pid: int, directory: str, limits: Limits) -> Excess | None:
    """Look at a worker once; a few small reads from /proc, and its directory."""
    memory = sum(map(linux.resident_bytes, (pid, *linux.descendants_of(pid))))
    if memory > limits.memory_bytes:
        return Excess(
            kind=measurement_pb2.ERROR_KIND_OUT_OF_MEMORY,
            message=f"held {memory // _MIB} MiB; the limit is {limits.memory_bytes // _MIB} MiB",
        )
    disk = directory_bytes(directory)
    if disk > limits.disk_bytes:
        return Excess(
            kind=measurement_pb2.ERROR_KIND_OUT_OF_DISK,
            message=f"wrote {disk // _MIB} MiB; the limit is {limits.disk_bytes // _MIB} MiB",
        )
    return None


def directory_bytes(directory: str) -> int:
    """Return what the files below a directory take on disk; files that vanish meanwhile count as nothing."""
    total = 0
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return total
