"""Keeps the thread that launches kernels off the cores of TVM's thread pool.

TVM binds each thread of its pool to a core of its own. The main thread, which computes a share of every parallel loop,
may run on all of them. Where it happens to be on one of theirs when a kernel begins, the two take turns until the
scheduler looks, some 20 ms later: half of the first measurements of a job took twice as long as the kernel.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_TASKS = Path("/proc/self/task")


def cores_apart() -> frozenset[int]:
    """Return the cores that this thread may use and to which no other thread of the process is bound."""
    return frozenset(os.sched_getaffinity(0)) - _bound_to()


def move_to(cores: frozenset[int]) -> None:
    """Move this thread to one of these cores, unless the list is empty.

    It may run where it could before, and does not as long as it computes: nothing is gained by moving it.
    """
    usable = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # no such cores, or this process may not use them any more
        os.sched_setaffinity(0, cores)
        os.sched_setaffinity(0, usable)


def _bound_to() -> set[int]:
    found: set[int] = set()
    for task in _TASKS.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            cores = os.sched_getaffinity(int(task.name))
            found |= cores if len(cores) == 1 else set()
    return found
