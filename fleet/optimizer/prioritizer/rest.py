"""Expected gain of the rest of a job's search, and the decision that the search is no longer worthwhile.

The time ahead is divided among the workloads as in a fractional knapsack (Dantzig, 1957): the largest gain per second
first, each workload up to the most that can be looked ahead. The result is an upper bound of the expected gain, since a
batch cannot be divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fleet.optimizer.prioritizer.values import Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """Expected gain of one open workload."""

    rate: float
    """Gain per priced second [weighted s/s], >= 0."""

    most_sec: float
    """Most that can be looked ahead to [weighted s], >= 0."""


def rest_of(prospects: Sequence[Prospect], *, within_sec: float, latency_sec: float) -> Rest:
    """Return the gain that the next `within_sec` of a job should bring.

    Args:
        within_sec: priced seconds: device seconds plus the builders' seconds at their price.
        latency_sec: current latency of the job's model [weighted s].
    """
    left_sec, gain_sec = within_sec, 0.0
    for prospect in sorted(prospects, key=lambda one: -one.rate):
        if prospect.rate <= 0 or left_sec <= 0:
            break
        gained_sec = min(prospect.most_sec, prospect.rate * left_sec)
        gain_sec += gained_sec
        left_sec -= gained_sec / prospect.rate
    return Rest(gain_sec=gain_sec, within_sec=within_sec, latency_sec=latency_sec)
