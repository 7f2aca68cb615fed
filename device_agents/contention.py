"""Did a worker have to wait for a processor? The kernel counts, for every thread, how long it was ready and not run.

Linux tells it in /proc/<pid>/task/<tid>/schedstat (https://docs.kernel.org/scheduler/sched-stats.html, second number
of three). A kernel built without it tells nothing, and then nothing is said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

_MOST_THREADS = 16
"""Of large pools a part is enough: it is read around every candidate."""

_NOTED_SHARE = 0.2
"""Less is an interruption in one of several repeats, of which the median counts."""

_NOTED_SEC = 0.005
"""Waking up costs every thread some microseconds, which in a short run are a large share and mean nothing."""


def waited_sec_by_thread(pid: int) -> dict[int, float]:
    """Return how long each thread of a process has waited so far; nothing where the kernel does not tell."""
    try:
        threads = sorted(map(int, os.listdir(f"/proc/{pid}/task")))[:_MOST_THREADS]  # noqa: PTH208 - a third of the time
    except OSError:
        return {}
    found = {}
    for thread in threads:
        try:
            # Plain os calls: read around every candidate.
            descriptor = os.open(f"/proc/{pid}/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found[thread] = int(os.read(descriptor, 128).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            continue
        finally:
            os.close(descriptor)
    return found


def describe_waiting(before: Mapping[int, float], after: Mapping[int, float], run_sec: float) -> str:
    """Say how much of a run its most hindered thread waited, where that is worth a word."""
    waited_sec = max((sec - before.get(thread, 0.0) for thread, sec in after.items()), default=0.0)
    if waited_sec < _NOTED_SEC or waited_sec < _NOTED_SHARE * run_sec:
        return ""
    return f"waited {min(1.0, waited_sec / run_sec):.0%} of its time for a busy processor" if run_sec > 0 else ""
