"""Which workload's next batch is worth most: pure decisions on plain numbers.

The currency is weighted seconds of the model's run time gained per second of device time. `GradientPrioritizer`
estimates the gain as Ansor does (Zheng et al., OSDI 2020, section 6): part from how fast the best time fell lately,
part from an optimistic guess that falls with the batches already spent. It falls with their square, not in proportion:
spaces begin with their best schedules, so one costly workload took 190 of 256 trials, and its first was the best.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_MATTERS = 0.01
"""Share of the model's time below which a workload waits for its first batch until it is worth one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is known of one workload when the next batch is chosen."""

    weight: float
    """How often the model runs it."""

    best_after_batch: tuple[float, ...]
    """Best time at the start and after each batch [s]; the first is the unscheduled program's. Infinite = unknown."""

    batches_spent: float
    """Batches so far, in this job and earlier ones; not whole, since the last batch may have been smaller."""

    batch_device_sec: float
    """Expected device time of one more batch [s], > 0."""

    is_open: bool = True
    """False: enough trials, or nothing left to try."""


class Prioritizer(Protocol):
    """Decides what is measured next."""

    def choose(self, standings: Sequence[Standing]) -> int | None:
        """Return the index of the workload that gets the next batch, or None when none is open."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPrioritizer:
    """Follows the expected gain per device second; ties go to the lower index."""

    alpha: float = 0.2
    """Share of the recent slope in the estimate; the rest is the optimistic guess."""

    window: int = 3
    """Batches over which the recent slope is taken."""

    def choose(self, standings: Sequence[Standing]) -> int | None:
        candidates = [index for index, standing in enumerate(standings) if standing.is_open]
        if not candidates:
            return None
        candidates = _unspent(standings, candidates) or candidates
        return max(candidates, key=lambda index: (self.worth(standings[index]), -index))

    def worth(self, standing: Standing) -> float:
        """Return the expected gain of one more batch [weighted s per device s]; infinite if no time is known yet."""
        best = standing.best_after_batch
        current = best[-1]
        if not math.isfinite(current):
            return math.inf
        # From the unscheduled program to the first candidates, times always fall a lot: this predicts nothing.
        found = best[1:]
        reach = min(self.window, len(found) - 1)
        slope = (found[-1 - reach] - current) / reach if reach > 0 else 0.0
        optimistic = current / (standing.batches_spent + 1) ** 2
        gain = self.alpha * slope + (1 - self.alpha) * optimistic
        return standing.weight * gain / standing.batch_device_sec


def _unspent(standings: Sequence[Standing], candidates: Sequence[int]) -> list[int]:
    """Return those that had no batch yet and matter: nobody knows what a first batch gains, and it gains most."""
    costs = [standing.weight * standing.best_after_batch[-1] for standing in standings]
    total = sum(cost for cost in costs if math.isfinite(cost))
    return [index for index in candidates if not standings[index].batches_spent and costs[index] >= _MATTERS * total]
