"""Verdicts on refreshed workloads. Pure: intervals in, one verdict out.

Code and environment are judged apart. The old code runs beside today's under one lease: their ratio is the code's. The
old code now against its stored time is the environment's, and one workload says little about that, so it is estimated
over all workloads of which the old code ran.
"""

from __future__ import annotations

import enum
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.optimizer.comparing.intervals import RatioInterval

MARGIN = 0.01
"""Smallest relative difference between programs that is reported."""

ENVIRONMENT_MARGIN = 0.02
"""The same for the environment: its ratio compares with times of another day."""

_WIDE = 0.2
"""Relative width of an interval above which equal times are not known to be equal."""

_FEWEST = 3
"""Workloads below which the environment is not judged."""

_DRAWS = 1000
_ERROR = 0.01


class Verdict(enum.StrEnum):
    """Result of the refresh of a workload."""

    KEPT = "kept"
    """Its code is the same, or as fast as before."""

    CARRIED = "carried"
    """The same for another TVM version than that of its records."""

    FASTER = "faster"
    SLOWER_BY_CODE = "slower by code"
    """Today's best program is slower than the old code of the former best."""

    SLOWER_BY_ENVIRONMENT = "slower by environment"
    """Old code takes longer than it did."""

    CHOICE_CHANGED = "choice changed"
    """Another schedule is faster than the former best."""

    NO_VERDICT = "no verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Programs of a workload that ran side by side."""

    is_same: bool
    """The former best has the same code as before."""

    is_carried: bool = False
    """Its record is of another TVM version."""

    rival: RatioInterval | None = None
    """Time of the former best over that of another schedule which is proven faster; None: none is."""

    code: RatioInterval | None = None
    """Time of today's best program over that of the old code; None: the old code did not run beside it."""


def environment_interval(ratios: Sequence[float], rng: random.Random) -> RatioInterval | None:
    """Return the ratio of old code's times, now over then, with its 99 % bootstrap interval.

    Args:
        ratios: one for each workload.

    Returns:
        None if there are too few.
    """
    if len(ratios) < _FEWEST:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(_DRAWS))
    cut = round(_DRAWS * _ERROR / 2)
    middle, low, high = statistics.fmean(logs), means[cut], means[-1 - cut]
    return RatioInterval(ratio=math.exp(middle), low=math.exp(low), high=math.exp(high))


def proven_rival(intervals: Sequence[RatioInterval | None]) -> int | None:
    """Return the place of the schedule that beats the former best the most, or None if none is proven to.

    Args:
        intervals: time of the former best over that of each other schedule; None: they were not compared.
    """
    found = {place: one.ratio for place, one in enumerate(intervals) if one is not None and is_slower(one, MARGIN)}
    return max(found, key=lambda place: found[place], default=None)


def is_slower(interval: RatioInterval | None, margin: float) -> bool:
    """Tell whether a ratio is proven above one, and beyond a margin."""
    return interval is not None and interval.low > 1 and interval.ratio > 1 + margin


def is_proven_beyond(interval: RatioInterval | None, share: float) -> bool:
    """Tell whether a slowdown of more than this share is proven."""
    return interval is not None and interval.low > 1 + share


def verdict_on(found: Comparison, environment: RatioInterval | None) -> Verdict:
    """Return the verdict on a workload that was measured.

    Args:
        environment: ratio of old code's times, now over then; None: not known.
    """
    if is_slower(found.code, MARGIN):
        return Verdict.SLOWER_BY_CODE
    if found.rival is not None:
        return Verdict.CHOICE_CHANGED
    if _is_faster(found.code, MARGIN):
        return Verdict.FASTER
    if is_slower(environment, ENVIRONMENT_MARGIN):
        return Verdict.SLOWER_BY_ENVIRONMENT
    if _is_faster(environment, ENVIRONMENT_MARGIN):
        return Verdict.FASTER
    if not found.is_same and (found.code is None or found.code.width > _WIDE):
        return Verdict.NO_VERDICT
    return unmeasured(is_carried=found.is_carried)


def unmeasured(*, is_carried: bool) -> Verdict:
    """Return the verdict on a workload with the same code as before."""
    return Verdict.CARRIED if is_carried else Verdict.KEPT


def _is_faster(interval: RatioInterval | None, margin: float) -> bool:
    return interval is not None and interval.high < 1 and interval.ratio < 1 - margin
