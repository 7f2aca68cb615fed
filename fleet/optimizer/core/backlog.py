"""What was searched ahead of a workload: candidates that nobody has begun to build, with what is expected of them.

They are nobody's: a candidate is claimed when it is chosen to be built. So what is dropped, because a newer search has
something better or the job ends, costs nothing and keeps no other job from it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.observation import Features
from fleet.optimizer.prioritizer.values import LogSecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """One candidate."""

    digest: str
    trace_json: str
    features: Features | None = field(default=None, compare=False)
    """None: the search did not need them."""

    log_secs: NDArray[np.float32] | None = field(default=None, compare=False)
    """Natural logarithms of the time [s] that each member of the model expects, shape [n_members]; None: nobody says
    anything about it."""


@dataclass(slots=True, kw_only=True)
class Backlog:
    """What one workload has ahead, in the order in which it should be measured."""

    candidates: tuple[Ahead, ...] = ()
    made_at: int = 0
    """How many trials its workload had had when they were searched."""

    def age(self, trials: int) -> int:
        """Return how many trials there were since: the search knew nothing of them."""
        return trials - self.made_at

    def take(self, count: int) -> tuple[Ahead, ...]:
        """Take the first ones."""
        taken, self.candidates = self.candidates[:count], self.candidates[count:]
        return taken

    def drop(self, digests: Collection[str]) -> None:
        """Forget some."""
        self.candidates = tuple(one for one in self.candidates if one.digest not in digests)

    def predictions(self) -> LogSecs | None:
        """Return what is expected of the candidates up to the first of which nothing is, [n_members, n_candidates]."""
        known: list[NDArray[np.float32]] = []
        for one in self.candidates:
            if one.log_secs is None:
                break
            known.append(one.log_secs)
        return np.stack(known, axis=1).astype(np.float64) if known else None
