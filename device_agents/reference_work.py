"""The reference kernel of processors: the same small piece of work, time after time.

Hashing a fixed buffer needs no artifact, no compiler and little memory, and its time follows the clock of the core and
whoever else runs there. It works for a few milliseconds, longer than a scheduler lets others wait, after a moment that
does not count, in which clocks rise.

Runs in workers, in one thread: those of TVM's pool spin for some fifty milliseconds after a parallel loop, on cores of
their own, and a second thread of ours would share one with them. Whether all cores were free while a candidate ran,
device_agents.contention tells.
"""

from __future__ import annotations

import hashlib
import time

_BUFFER = bytes(range(256)) * 1024
_SETTLE_SEC = 0.0015
_WORK_SEC = 0.004
_LEAST_PIECES = 3


class CpuReference:
    """Times the work where this process may run."""

    def __call__(self) -> list[float]:
        """Return how long each piece took [s]."""
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
