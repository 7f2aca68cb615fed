"""Order of measuring: share of the models' time x chance that the choice changes, per device second. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SENTINELS = 12
"""Workloads that show the state of the environment."""

_PRIOR_CHANGES, _PRIOR_COUNT = 1, 10
"""Experience with a kind before its first verdict: one choice in ten changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A workload that may be measured."""

    name: str
    kind: str
    models_sec: float
    """Its share of all models' time [s]."""

    device_sec: float
    """Expected device time of its measurement [s]; > 0."""


@dataclass(slots=True)
class Experience:
    """Verdicts so far, by kind of operator."""

    counts: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)

    def note(self, kind: str, *, has_changed: bool) -> None:
        """Add a verdict."""
        self.counts[kind] += 1
        self.changes[kind] += has_changed

    def chance(self, kind: str) -> float:
        """Return the chance that the choice of a workload of this kind changes."""
        return (_PRIOR_CHANGES + self.changes[kind]) / (_PRIOR_COUNT + self.counts[kind])


def next_of(items: Iterable[Item], experience: Experience) -> Item | None:
    """Return the item worth most per device second; of equal ones the first by name. None: there are none."""
    return min(items, key=lambda one: (-_worth(one, experience), one.name), default=None)


def sentinels(items: Sequence[Item]) -> list[Item]:
    """Return the items with the largest shares, each of another kind as far as there are as many kinds."""
    ordered = sorted(items, key=lambda one: (-one.models_sec, one.name))
    first_of_kind = list({one.kind: one for one in reversed(ordered)}.values())
    chosen = {one.name for one in first_of_kind}
    ordered.sort(key=lambda one: one.name not in chosen)
    return ordered[:SENTINELS]


def _worth(item: Item, experience: Experience) -> float:
    return item.models_sec * experience.chance(item.kind) / item.device_sec
