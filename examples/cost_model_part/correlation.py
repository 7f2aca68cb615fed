"""Predicts by the correlation of each column with the time, as if the columns were independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fleet.cost_model.part import Arrays, Candidates, Lesson, Vector, other_folds
from fleet.domain.observation import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """A weight per column of the relative rows."""

    name: ClassVar[str] = "correlation"

    per_column: Vector
    """[n_columns]."""

    @classmethod
    def fit(cls, lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> list[Correlation]:
        """Fit a part for each fold; nothing is random here."""
        return [cls(per_column=_correlations(seen)) for seen in other_folds(lessons, folds)]

    def level(self, features: Sequence[Features]) -> float:
        """Return 0: the rows are relative."""
        return 0.0

    def values(self, candidates: Candidates, level: float) -> Vector:
        """Return a value per candidate: the mean over all columns."""
        values: Vector = candidates.rows @ self.per_column
        return values

    def arrays(self) -> Arrays:
        """Return the weights."""
        return {"correlation": self.per_column}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Correlation:
        """Read the weights."""
        return cls(per_column=arrays["correlation"].astype(np.float32))


def _correlations(lessons: Sequence[Lesson]) -> Vector:
    products = sum(lesson.rows.T @ (lesson.weights * lesson.targets) for lesson in lessons)
    total = sum(float(lesson.weights.sum()) for lesson in lessons) * lessons[0].rows.shape[1]
    return np.asarray(products / total, np.float32)
