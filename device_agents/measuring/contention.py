"""Detects contention: the kernel counts for every thread how long it was ready but not running.

Linux reports it in /proc/<pid>/task/<tid>/schedstat (https://docs.kernel.org/scheduler/sched-stats.html, second number
of three). Kernels built without it report nothing, and then no contention is found.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from fleet.domain.measuring import Disturbance, DisturbanceKind

_MOST_THREADS = 16
"""Limit on the threads that are read: a part of a large pool is enough, and each read delays a candidate."""

_NOTED_SHARE = 0.2
"""Less is an interruption of one repeat among several, of which the median counts."""

_NOTED_SEC = 0.005
"""Waking up costs every thread some microseconds: a large share of a short run, but no contention."""


def waited_sec_by_thread(pid: int) -> dict[int, float]:
    """Return how long each thread of a process has waited so far; empty where the kernel does not report it."""
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


def find_contention(before: Mapping[int, float], after: Mapping[int, float], run_sec: float) -> Disturbance | None:
    """Return how long the most delayed thread of a run waited; None if that is negligible."""
    waited_sec = max((sec - before.get(thread, 0.0) for thread, sec in after.items()), default=0.0)
    if run_sec <= 0 or waited_sec < _NOTED_SEC or waited_sec < _NOTED_SHARE * run_sec:
        return None
    share = min(1.0, waited_sec / run_sec)
    return Disturbance(DisturbanceKind.CONTENTION, f"waited {share:.0%} of its time for a busy processor")
