"""Samples possible times of a workload's next candidates, from a model's predictions or from records.

Each row of a result is one possible future, so common factors of candidates (the model's error for this workload, the
tail of its times) are drawn once for a row. Only times below the best known one matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.optimizer.prioritizer.values import LogSecs

Futures = NDArray[np.float64]
"""Logarithms of times [s], shape [n_futures, n_candidates]; infinite where a candidate cannot be the best."""

_RECENT = 48
"""Records that count: a search gets better, so its first candidates say little of its next."""

_TAIL_SHARE = 0.25
"""Share of the records that is taken for the tail of fast ones, and at least `_MIN_TAIL`."""

_MIN_TAIL = 2

_BORROWED = 0.5
"""Weight of other workloads' usual spread, in records."""

USUAL_SPREAD = 0.15
"""Spread of the tail [natural logarithm of time] where no workload says anything else."""

_BEND = 0.2
"""Shape of the tail (generalised Pareto, negative): it ends 1 / `_BEND` + 1 spreads below its start."""


def from_predictions(log_secs: LogSecs, futures: int, rng: np.random.Generator) -> Futures:
    """Sample from an ensemble's predictions: one error common to a row, and each candidate's differences of members."""
    shared = log_secs.mean(axis=1, keepdims=True) - log_secs.mean()
    own_error = (log_secs - shared).std(axis=0)
    members = rng.integers(len(log_secs), size=futures)
    errors = shared[members] + own_error * rng.standard_normal((futures, log_secs.shape[1]))
    drawn: Futures = log_secs.mean(axis=0) + errors
    return drawn


def from_records(
    run_secs: Sequence[float], count: int, futures: int, rng: np.random.Generator, usual_spread: float = USUAL_SPREAD
) -> Futures:
    """Sample `count` more times like the recent ones: from the tail of the fastest, extrapolated below the best."""
    recent = np.log(np.asarray(run_secs[-_RECENT:], dtype=np.float64))
    timed = np.sort(recent[np.isfinite(recent)])
    if not len(timed):
        return np.full((futures, count), math.inf)
    size = _tail_size(len(timed))
    start = timed[min(size, len(timed) - 1)]
    spread = (size * _mean_excess(timed) + _BORROWED * usual_spread) / (size + _BORROWED)
    spreads = spread * (size + _BORROWED) / rng.gamma(size + _BORROWED + 1, size=(futures, 1))
    shares = rng.beta(size, len(recent) - size + 1, size=(futures, 1))
    quantiles = rng.random((futures, count)) / shares
    is_fast = quantiles < 1
    scales = np.broadcast_to(spreads, quantiles.shape)[is_fast] * (1 + _BEND) / _BEND
    drawn = np.full((futures, count), math.inf)
    drawn[is_fast] = start - scales * (1 - quantiles[is_fast] ** _BEND)
    return drawn


def tail_spread(run_secs: Sequence[float]) -> float | None:
    """Return the mean distance of the fastest recent times from the start of their tail; None: too few times."""
    recent = np.log(np.asarray(run_secs[-_RECENT:], dtype=np.float64))
    timed = np.sort(recent[np.isfinite(recent)])
    return _mean_excess(timed) if len(timed) > _MIN_TAIL else None


def gains(futures: Futures, current_sec: float, least_sec: float) -> NDArray[np.float64]:
    """Return the share of the current time that is gained after 1, 2, ... candidates, shape [n_futures, n_candidates].

    No future is faster than the roofline, unless the current time is already.
    """
    floor = math.log(min(least_sec, current_sec)) if least_sec > 0 else -math.inf
    best = np.minimum.accumulate(np.maximum(futures, floor), axis=1)
    return np.maximum(0.0, 1.0 - np.exp(np.minimum(best - math.log(current_sec), 0.0)))


def _tail_size(timed: int) -> int:
    return min(max(_MIN_TAIL, math.ceil(_TAIL_SHARE * timed)), timed)


def _mean_excess(timed: NDArray[np.float64]) -> float:
    """Return the mean distance of a sorted sample's tail from its start."""
    size = _tail_size(len(timed))
    return float(np.mean(timed[min(size, len(timed) - 1)] - timed[:size]))
