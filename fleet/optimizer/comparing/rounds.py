"""Plan of rounds with one block per program, and the rule that ends them. Pure: no clock, no device."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.optimizer.comparing.intervals import LOOKS, RatioInterval, ratio_interval

NARROW = 0.03
"""Relative width of all intervals below which the rounds end."""

_BUDGET_SEC, _BUDGET_SHARE = 2.0, 0.1
"""Time budget of the rounds: the longer of this time [s] and this share of the job's time so far. Without any trial, a
model only has static schedules and unscheduled programs to choose from: it gets the former."""

_MOST_BUDGETS = 3

_BLOCK_SEC = 0.03
"""Approximate duration of a block."""

_MOST_REPEATS = 3
"""Maximum repeats in a block. The fastest repeat is the block's time."""


def rounds_budget_sec(*, job_sec: float, trials: int) -> float:
    """Return the time after which no round begins [s].

    Args:
        job_sec: the job's time so far [s].
        trials: number of trials of the model's workloads, those of earlier jobs included.
    """
    return max(_BUDGET_SEC, _BUDGET_SHARE * job_sec) if trials else _BUDGET_SEC


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Block times of programs that run in turns."""

    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    """Pairs of programs to compare."""

    budget_sec: float
    """Time after which no round begins [s]. Tripled until there are enough rounds for an interval."""

    rng: random.Random
    secs: dict[str, list[float]] = field(default_factory=dict)
    """Block times by program, one entry per round [s]."""

    @property
    def count(self) -> int:
        """Number of rounds so far."""
        return max(map(len, self.secs.values()), default=0)

    def order(self) -> Sequence[str]:
        """Draw the order of the next round."""
        return self.rng.sample(self.names, len(self.names))

    def repeats(self, name: str) -> int:
        """Return the number of repeats in a program's next block: one for a slow or still unknown program."""
        known = self.secs.get(name)
        return max(1, min(_MOST_REPEATS, math.floor(_BLOCK_SEC / min(known)))) if known else 1

    def add(self, times: Mapping[str, float]) -> None:
        """Add a round. Drops programs without a finite time in it."""
        self.names = tuple(name for name in self.names if math.isfinite(times.get(name, math.inf)))
        self.pairs = tuple(pair for pair in self.pairs if set(pair) <= set(self.names))
        self.secs = {name: [*self.secs.get(name, []), times[name]] for name in self.names}

    def is_over(self, elapsed_sec: float) -> bool:
        """Tell whether the rounds are over.

        Args:
            elapsed_sec: time since the first round began [s].
        """
        if not self.count:
            return not self.names
        budget_sec = self.budget_sec * (1 if self.count >= LOOKS[0] else _MOST_BUDGETS)
        if not self.pairs or self.count >= LOOKS[-1] or elapsed_sec >= budget_sec:
            return True
        return self.count in LOOKS and all(self._is_narrow(pair) for pair in self.pairs)

    def best_sec(self, name: str) -> float:
        """Return the time of a program's fastest, least disturbed block [s]; infinite if it did not run."""
        return min(self.secs.get(name, ()), default=math.inf)

    def interval(self, name: str, other: str) -> RatioInterval | None:
        """Return the interval of the ratio of two programs' times, or None if they had too few common rounds."""
        if name not in self.secs or other not in self.secs:
            return None
        return ratio_interval(self.secs[name], self.secs[other])

    def _is_narrow(self, pair: tuple[str, str]) -> bool:
        found = self.interval(*pair)
        return found is not None and found.width < NARROW
