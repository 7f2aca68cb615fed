"""The curve of a search: the best time so far over its trials, and figures derived from it. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_NEARLY = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One trial of a search."""

    at_sec: float
    """From the start of the search's process to this trial's result."""

    run_sec: float | None
    """Time of the layer; None when the trial failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """All trials of one search on one layer, in order."""

    trials: tuple[Trial, ...]

    @property
    def best_secs(self) -> list[float]:
        """Best time after each trial; infinite until one succeeded."""
        times = (math.inf if trial.run_sec is None else trial.run_sec for trial in self.trials)
        return list(itertools.accumulate(times, min))

    @property
    def final_sec(self) -> float:
        """Best time of all."""
        return min(self.best_secs, default=math.inf)

    def reaches(self, run_sec: float) -> Reached | None:
        """Return the point at which the search came within 95 % of the speed of `run_sec`; None: never."""
        for number, (trial, best_sec) in enumerate(zip(self.trials, self.best_secs, strict=True), start=1):
            if math.isfinite(best_sec) and best_sec * _NEARLY <= run_sec:
                return Reached(trials=number, sec=trial.at_sec)
        return None

    def speeds(self, reference_sec: float, count: int) -> list[float]:
        """Return the speed after 1, 2, ..., `count` trials as a share of the reference's; it stays after the last."""
        found = [reference_sec / best_sec for best_sec in self.best_secs[:count]]
        return found + [found[-1] if found else 0.0] * (count - len(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """Time and trials until a search was nearly as fast as its own, or another's, end."""

    trials: int
    sec: float


def mean_speeds(curves: Sequence[Curve], reference_secs: Sequence[float], count: int) -> list[float]:
    """Return the geometric mean over layers of the relative speeds after each trial; 0 while one layer has no time."""
    per_layer = [curve.speeds(sec, count) for curve, sec in zip(curves, reference_secs, strict=True)]
    return [statistics.geometric_mean(column) if min(column) > 0 else 0.0 for column in zip(*per_layer, strict=True)]
