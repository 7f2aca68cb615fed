"""Confidence interval of the ratio of two programs' times, from blocks that ran side by side.

The interval covers the median of the block ratios and lies between two of their order statistics: W. R. Thompson, "On
Confidence Ranges for the Median and Other Expectation Distributions for Populations of Unknown Distribution Form",
Annals of Mathematical Statistics 7 (1936). It assumes nothing about the distribution of times. The order within each
round is random, so equal programs are exchangeable in every round, even on a busy machine. A round therefore favours
either program with probability 1/2 (R. A. Fisher, "The Design of Experiments", 1935).

The interval is only computed at a few fixed numbers of rounds, so that repeated looks keep its confidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LOOKS = (10, 14, 20, 28, 40)
"""Numbers of rounds after which the interval is computed."""

_ERROR = 0.01
"""Probability that one of the intervals of a comparison misses the true ratio, over all looks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioInterval:
    """Ratio of two programs' times, with its 99 % confidence interval."""

    ratio: float
    """Median of the block ratios."""

    low: float
    high: float

    @property
    def width(self) -> float:
        """Width relative to the ratio."""
        return (self.high - self.low) / self.ratio


def ratio_interval(secs: Sequence[float], other_secs: Sequence[float]) -> RatioInterval | None:
    """Return the interval of `secs / other_secs`, or None if there are too few rounds.

    Args:
        secs: block times of one program, by round [s].
        other_secs: block times of the other program in the same rounds [s].
    """
    count = max((look for look in LOOKS if look <= len(secs)), default=0)
    if not count:
        return None
    ratios = sorted(one / other for one, other in zip(secs[:count], other_secs[:count], strict=True))
    left_out = _left_out(count)
    return RatioInterval(ratio=statistics.median(ratios), low=ratios[left_out], high=ratios[-1 - left_out])


def _left_out(count: int) -> int:
    """Return the number of ratios to exclude at each end, given their total number."""
    allowed = _ERROR / len(LOOKS) / 2
    tail, left_out = 0.0, 0
    while (tail := tail + math.comb(count, left_out) / 2**count) <= allowed:
        left_out += 1
    return max(0, left_out - 1)
