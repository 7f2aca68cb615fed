"""The reference kernel of processors: the same small piece of work, time after time, on as many cores as kernels use.

Hashing a fixed buffer needs no artifact, no compiler and little memory, and its time follows the clock of the core and
whoever else runs there. Each thread works for a few milliseconds, longer than a scheduler lets others wait, after a
moment that does not count: threads of the last candidate still spin then, and clocks rise.

Runs in workers. A thread starts with the first call, never before the fork.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

_BUFFER = bytes(range(256)) * 1024
_SETTLE_SEC = 0.0015
_WORK_SEC = 0.004
_LEAST_PIECES = 3
_MOST_THREADS = 16
"""More would take longer to start than to work."""


class CpuReference:
    """Times the work on the cores that this process may use."""

    def __init__(self, threads: int | None = None) -> None:
        usable = len(os.sched_getaffinity(0))
        wanted = threads or int(os.environ.get("TVM_NUM_THREADS", "0") or "0") or usable
        self._threads = max(1, min(wanted, usable, _MOST_THREADS))
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self) -> list[float]:
        """Return how long each piece of the slowest thread took [s]."""
        if self._threads == 1:
            return _work()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="reference")
        runs = [self._pool.submit(_work) for _ in range(self._threads)]
        return max((run.result() for run in runs), key=statistics.fmean)


def _work() -> list[float]:
    settled_at = time.perf_counter() + _SETTLE_SEC
    while time.perf_counter() < settled_at:
        hashlib.sha256(_BUFFER)
    secs: list[float] = []
    started = last = time.perf_counter()
    while len(secs) < _LEAST_PIECES or last - started < _WORK_SEC:
        hashlib.sha256(_BUFFER)
        now = time.perf_counter()
        secs.append(now - last)
        last = now
    return secs
