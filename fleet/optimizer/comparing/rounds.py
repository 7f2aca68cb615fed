"""Plans rounds in which each program has one block, and decides when there are enough. Pure: no clock, no device."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.optimizer.comparing.intervals import LOOKS, RatioInterval, ratio_interval

NARROW = 0.03
"""Rounds end when all intervals are narrower."""

_MOST_BUDGETS = 3

_BLOCK_SEC = 0.03
"""About how long a block lasts."""

_MOST_REPEATS = 3
"""Repeats in a block; the fastest of them is the block's time."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """Times of programs that take turns."""

    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    """Programs to be compared with each other."""

    budget_sec: float
    """Time after which no round begins [s]. For the fewest rounds that give an interval, it may be three times that."""

    rng: random.Random
    secs: dict[str, list[float]] = field(default_factory=dict)
    """Block times by program, one entry per round [s]."""

    @property
    def count(self) -> int:
        """Rounds so far."""
        return max(map(len, self.secs.values()), default=0)

    def order(self) -> Sequence[str]:
        """Draw the order of the next round."""
        return self.rng.sample(self.names, len(self.names))

    def repeats(self, name: str) -> int:
        """Return how many repeats a program's next block has: one until its time is known, and if it is slow."""
        known = self.secs.get(name)
        return max(1, min(_MOST_REPEATS, math.floor(_BLOCK_SEC / min(known)))) if known else 1

    def add(self, times: Mapping[str, float]) -> None:
        """Add a round. A program without a finite time in it takes part no longer."""
        self.names = tuple(name for name in self.names if math.isfinite(times.get(name, math.inf)))
        self.pairs = tuple(pair for pair in self.pairs if set(pair) <= set(self.names))
        self.secs = {name: [*self.secs.get(name, []), times[name]] for name in self.names}

    def is_over(self, elapsed_sec: float) -> bool:
        """Tell whether no round follows.

        Args:
            elapsed_sec: since the first round began [s].
        """
        if not self.count:
            return not self.names
        budget_sec = self.budget_sec * (1 if self.count >= LOOKS[0] else _MOST_BUDGETS)
        if not self.pairs or self.count >= LOOKS[-1] or elapsed_sec >= budget_sec:
            return True
        return self.count in LOOKS and all(self._is_narrow(pair) for pair in self.pairs)

    def best_sec(self, name: str) -> float:
        """Return the time of a program's fastest block, the least disturbed one [s]; infinite: it did not run."""
        return min(self.secs.get(name, ()), default=math.inf)

    def interval(self, name: str, other: str) -> RatioInterval | None:
        """Return the ratio of two programs' times; None if they had too few rounds together."""
        if name not in self.secs or other not in self.secs:
            return None
        return ratio_interval(self.secs[name], self.secs[other])

    def _is_narrow(self, pair: tuple[str, str]) -> bool:
        found = self.interval(*pair)
        return found is not None and found.width < NARROW
