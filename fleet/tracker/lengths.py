"""Lengths of ended leases, from which forecasts draw the lengths of live and coming ones. Pure."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from fleet.domain.lease_class import LeaseClass
from fleet.tracker.calibration import quantile
from fleet.tracker.core.outlook import Held

_REMEMBERED_LENGTHS = 256
_LEAST_LENGTHS = 5
"""A group of ended leases with fewer is too small to draw from."""
_MAX_GROUPS = 8_192
"""Limit of remembered groups of leases, since accounts come and go."""


class Lengths:
    """Lengths of ended leases, by account, class and board model."""

    def __init__(self) -> None:
        self._latest: defaultdict[tuple[str, ...], deque[float]] = defaultdict(deque)
        self._sorted: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self._latest)

    def add(self, account: str, lease_class: LeaseClass, model: str, sec: float) -> None:
        """Add an ended lease."""
        for key in _groups(account, lease_class, model):
            if key not in self._latest:
                self._make_room()
            latest, ordered = self._latest[key], self._sorted[key]
            latest.append(sec)
            insort(ordered, sec)
            if len(latest) > _REMEMBERED_LENGTHS:
                del ordered[bisect_left(ordered, latest.popleft())]

    def rest_sec(self, account: str, lease_class: LeaseClass, model: str, age_sec: float) -> float | None:
        """Return the expected rest of a live lease [s]: the median of like leases that lasted at least as long.

        None: none is known.
        """
        ordered = self.like(account, lease_class, model)
        first = bisect_left(ordered, age_sec)
        return quantile(ordered[first:], 0.5) - age_sec if first < len(ordered) else None

    def _make_room(self) -> None:
        """Forget the oldest group of an account when there are too many."""
        if len(self._latest) >= _MAX_GROUPS and (oldest := next((key for key in self._latest if key[0]), None)):
            del self._latest[oldest], self._sorted[oldest]

    def like(self, account: str, lease_class: LeaseClass, model: str) -> Sequence[float]:
        """Return sorted lengths of the most similar leases that are known well enough; empty if none are known."""
        found: Sequence[float] = ()
        for key in _groups(account, lease_class, model):
            found = self._sorted.get(key) or found
            if len(found) >= _LEAST_LENGTHS:
                break
        return found


def _groups(account: str, lease_class: LeaseClass, model: str) -> Iterator[tuple[str, ...]]:
    """Yield the groups of a lease, the most similar leases first."""
    yield account, lease_class, model
    yield account, lease_class
    yield "", lease_class, model
    yield "", lease_class


class Draws:
    """Random draws from the lengths of one moment."""

    def __init__(self, lengths: Lengths, rng: random.Random) -> None:
        self._lengths = lengths
        self._rng = rng
        self._samples: dict[tuple[str, LeaseClass, str], Sequence[float]] = {}
        self.is_known = True
        """False if a lease was drawn for which no ended one is known."""

    def length_sec(self, account: str, lease_class: LeaseClass, model: str) -> float:
        """Draw the length of a lease; 0 if no similar one has ended."""
        sample = self._sample(account, lease_class, model)
        return sample[int(self._rng.random() * len(sample))] if sample else 0.0

    def rest_sec(self, held: Held, model: str) -> float:
        """Draw the rest of a live lease from those that lasted at least as long."""
        sample = self._sample(held.account, held.lease_class, model)
        first = bisect_left(sample, held.age_sec)
        if first < len(sample):
            return sample[first + int(self._rng.random() * (len(sample) - first))] - held.age_sec
        return held.age_sec * self._rng.random() + 1.0  # none lasted as long: up to twice its age

    def _sample(self, account: str, lease_class: LeaseClass, model: str) -> Sequence[float]:
        key = account, lease_class, model
        found = self._samples.get(key)
        if found is None:
            found = self._samples[key] = tuple(self._lengths.like(*key))
            self.is_known = self.is_known and bool(found)
        return found
