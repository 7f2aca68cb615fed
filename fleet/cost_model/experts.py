"""The parts of the cost model, and their mean.

All predict how a candidate compares with others of its workload, in units of that workload's spread: 0 is the mean,
higher is slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.network import Network
from fleet.cost_model.part import Candidates, Lesson, Part, Vector
from fleet.cost_model.pooling import Reference, pooled
from fleet.cost_model.ridge import Ridge
from fleet.cost_model.samples import Group
from fleet.cost_model.trees import SharedTrees
from fleet.domain.observation import Features

_LEAST_SPREAD = 0.07
"""Minimum spread of logarithms of times: if a workload's candidates hardly differ, their order is noise."""

PARTS: tuple[type[Part], ...] = (Ridge, SharedTrees, Network)
"""All parts that are trained and that a snapshot may name."""


def lesson_of(group: Group) -> Lesson:
    """Return the training data of a group."""
    rows = pooled(group.features)
    return Lesson(group.observations, Reference.of(rows).relative(rows), standardized(group.log_sec))


def standardized(log_sec: Vector) -> Vector:
    """Return logarithms of times in units of their spread, around 0."""
    values: Vector = (log_sec - log_sec.mean()) / (log_sec.std() + np.float32(_LEAST_SPREAD))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Parts trained on the same workloads."""

    parts: tuple[Part, ...]

    def levels(self, features: Sequence[Features]) -> tuple[float, ...]:
        """Return the level of each part for a frame's candidates."""
        return tuple(part.level(features) for part in self.parts)

    def values(self, candidates: Candidates, levels: Sequence[float]) -> Vector:
        """Return a value per candidate: the mean of the parts."""
        mean: Vector = (self.values_by_part(candidates, levels).sum(axis=0) / len(self.parts)).astype(np.float32)
        return mean

    def values_by_part(self, candidates: Candidates, levels: Sequence[float]) -> NDArray[np.float32]:
        """Return the values of each part, [n_parts, n_candidates]."""
        return np.stack([part.values(candidates, level) for part, level in zip(self.parts, levels, strict=True)])


def train_experts(lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> tuple[Experts, ...]:
    """Fit experts for each fold, to all lessons except the held-out ones."""
    by_part = [part.fit(lessons, folds, seed=seed) for part in PARTS]
    return tuple(Experts(parts=parts) for parts in zip(*by_part, strict=True))
