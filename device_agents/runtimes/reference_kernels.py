"""Reference kernels of workers: fixed small workloads, run repeatedly.

They run for a few milliseconds, longer than a scheduler's time slice, after an uncounted warm-up in which clocks rise.
device_agents.measuring.reference interprets their times.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable

_BUFFER = bytes(range(256)) * 1024
_SETTLE_SEC = 0.0015
_WORK_SEC = 0.004
_LEAST_PIECES = 3

_COPY_PIECES = 5
_COPY_PIECE_SEC = 0.001
"""Shorter, it would time how the host waits for the device."""

_MOST_COPIES = 512
_SMALLEST_COPY_BYTES = 8 * 1024**2
_LARGER_COPIES_BYTES = (32 * 1024**2, 128 * 1024**2)
_LEAST_COPY_SEC = 5e-5
"""Ten times a host's time to start a copy."""


class CpuReferenceKernel:
    """Hashes a fixed buffer on the processor.

    That needs no artifact, no compiler and little memory, and its time follows the clock of the core and other
    processes there. In one thread: those of TVM's pool spin for some 10 ms after a parallel loop, on cores of
    their own, and a second thread of ours would share one with them. Whether all cores were free while a candidate
    ran, device_agents.measuring.contention tells.
    """

    def __call__(self) -> list[float]:
        """Return the time of each piece [s]."""
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


class CopyReferenceKernel:
    """Copies a buffer within the memory of a device other than a processor, repeatedly for a millisecond.

    The buffer grows until a copy takes several times as long as its start: an H100 copies 8 MiB faster than a host
    starts copies, and the busier that host, the slower the GPU seemed, by up to five times.
    """

    def __init__(
        self,
        copier: Callable[[int], Callable[[], object]],
        synchronize: Callable[[], object],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Find a large enough buffer, and the number of copies in a piece.

        Args:
            copier: allocates buffers of so many bytes, returns a function that starts a copy from one to the other. It
            may fail.
            synchronize: waits until all copies are done.
            clock: seconds.
        """
        self._synchronize = synchronize
        self._clock = clock
        self._copy = copier(_SMALLEST_COPY_BYTES)
        for size_bytes in _LARGER_COPIES_BYTES:
            if self._settled_sec() >= _LEAST_COPY_SEC:
                break
            try:
                self._copy = copier(size_bytes)
            except (MemoryError, RuntimeError) as error:
                sys.stderr.write(f"the reference kernel copies less than {size_bytes} bytes: {error}\n")
        self._count = max(1, min(_MOST_COPIES, round(_COPY_PIECE_SEC / self._settled_sec())))

    def __call__(self) -> list[float]:
        """Return the time of a copy in each piece [s]."""
        self._copy_sec(self._count)  # let the clocks rise
        return [self._copy_sec(self._count) for _ in range(_COPY_PIECES)]

    def _settled_sec(self) -> float:
        self._copy_sec(1)
        return self._copy_sec(4)

    def _copy_sec(self, count: int) -> float:
        started = self._clock()
        for _ in range(count):
            self._copy()
        self._synchronize()
        return (self._clock() - started) / count
