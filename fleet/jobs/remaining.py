"""Remaining time of a search, from the times of its latest results."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from fleet.domain.jobs import Remaining

_BLOCK = 8
"""Results whose time is one sample of the pace: those of a batch come close together."""

_LEAST_BLOCKS = 3
_QUANTILE = 1.28
"""Standard deviations of a normal distribution between its mean and its 90 % quantile."""


def remaining(results_at_sec: Sequence[float], trials_left: int, *, limit_sec: float = math.inf) -> Remaining | None:
    """Return the remaining time of a search; its limit while too few results are known, None without a limit.

    The spread has two parts: that of single batches, and the error of their mean.

    Args:
        results_at_sec: moments of the latest results, oldest first.
        limit_sec: time until the search ends regardless of its trials.
    """
    ends = list(results_at_sec)[::-_BLOCK][::-1]
    blocks_sec = [after - before for before, after in itertools.pairwise(ends)]
    if len(blocks_sec) < _LEAST_BLOCKS:
        is_limited = math.isfinite(limit_sec)
        return Remaining(from_sec=limit_sec, expected_sec=limit_sec, by_sec=limit_sec) if is_limited else None
    mean_sec, spread_sec = statistics.mean(blocks_sec), statistics.stdev(blocks_sec)
    left = trials_left / _BLOCK
    error_sec = _QUANTILE * spread_sec * math.sqrt(left + left**2 / len(blocks_sec))
    low, middle, high = left * mean_sec - error_sec, left * mean_sec, left * mean_sec + error_sec
    return Remaining(
        from_sec=min(max(low, 0.0), limit_sec), expected_sec=min(middle, limit_sec), by_sec=min(high, limit_sec)
    )
