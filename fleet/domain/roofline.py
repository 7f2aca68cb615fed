"""The roofline of a device: limits of its arithmetic and its memory.

S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model for multicore architectures,
CACM 52(4), 2009. Memory is as fast as the cache that holds the touched data, so its rate is known for several sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """Read rate of a working set of this size."""

    size_bytes: int
    bytes_per_sec: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The limits of one device. Whatever program they were measured with, only another method can exceed them."""

    flop_per_sec: float
    """Peak of float32 arithmetic, all cores; 0: not known."""

    memory: tuple[MemoryRate, ...] = ()
    """Read rates by growing size; empty: not known."""

    source: str = ""
    """Source of the figures, in a sentence."""

    def compute_sec(self, flop: float) -> float:
        """Return the minimum time of this many operations; 0 if the peak is unknown."""
        return flop / self.flop_per_sec if self.flop_per_sec else 0.0

    def memory_sec(self, size_bytes: float) -> float:
        """Return the minimum time of reading this many bytes, out of the smallest cache that holds them."""
        if not self.memory:
            return 0.0
        rate = next((rate for rate in self.memory if rate.size_bytes >= size_bytes), self.memory[-1])
        return size_bytes / rate.bytes_per_sec

    def least_sec(self, flop: float, size_bytes: float) -> float | None:
        """Return the minimum time of an operator, or None if no limit is known."""
        return max(self.compute_sec(flop), self.memory_sec(size_bytes)) or None

    def is_memory_bound(self, flop: float, size_bytes: float) -> bool:
        """Tell whether memory is the tighter limit."""
        return self.memory_sec(size_bytes) > self.compute_sec(flop)


def share_of(least_sec: float | None, sec: float) -> float | None:
    """Return a time's share of the roofline; above 1 if the caches held more than was assumed."""
    return least_sec / sec if least_sec is not None and 0 < sec < math.inf else None
