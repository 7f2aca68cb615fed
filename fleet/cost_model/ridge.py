"""Linear regression on relative rows, with a residual for each instruction set and each device model.

A group's Gram matrix is all that is needed of it, so each fit solves one small system. So do the residuals: the
correction of a device to that of its instruction set to the weights that all devices share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fleet.cost_model.gram import Gram
from fleet.cost_model.part import Arrays, Candidates, Lesson, Vector, other_folds
from fleet.domain.observation import Features

STRENGTH = 0.02
"""Ridge penalty on the weights of normalized columns, as a share of the number of records."""

RESIDUAL_STRENGTH = 0.2
"""A residual is held down more: there is less to learn it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ridge:
    """Weights of the columns, as a part of the cost model."""

    name: ClassVar[str] = "ridge"

    weights: Vector
    """[n_columns]."""

    @classmethod
    def fit(cls, lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> list[Ridge]:
        """Solve one small system for each fold."""
        return [cls(weights=fit(grams)) for grams in other_folds([lesson.gram for lesson in lessons], folds)]

    def level(self, features: Sequence[Features]) -> float:
        """Return 0: the rows are relative."""
        return 0.0

    def values(self, candidates: Candidates, level: float) -> Vector:
        """Return a value per candidate, with the device's residual added to the weights."""
        weights = self.weights if candidates.residual is None else np.add(self.weights, candidates.residual)
        values: Vector = candidates.rows @ weights
        return values

    def arrays(self) -> Arrays:
        """Return the weights."""
        return {"weights": self.weights}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Ridge:
        """Read the weights."""
        return cls(weights=arrays["weights"].astype(np.float32))


def fit(grams: Sequence[Gram], *, strength: float = STRENGTH) -> Vector:
    """Return the weights [n_columns] that fit these groups.

    Args:
        strength: penalty, as a share of the records.
    """
    total = sum(gram.weight for gram in grams)
    rows = sum(gram.rows for gram in grams)
    targets = sum(gram.targets for gram in grams)
    penalty = strength * total * np.eye(len(grams[0].targets))
    weights: Vector = np.linalg.solve(rows + penalty, targets).astype(np.float32)
    return weights


def fit_residual(grams: Sequence[Gram], shared: Vector) -> Vector:
    """Return the additions to the shared weights for these groups."""
    rest = [Gram(rows=gram.rows, targets=gram.targets - gram.rows @ shared, weight=gram.weight) for gram in grams]
    return fit(rest, strength=RESIDUAL_STRENGTH)


def residuals(lessons: Sequence[Lesson]) -> tuple[Mapping[str, Vector], Mapping[str, Vector]]:
    """Return the residual weights of instruction sets, and then of device models.

    A device model's residual includes that of its instruction set, which it shares with its siblings. With a single
    instruction set or device model there are none.
    """
    grams = [lesson.gram for lesson in lessons]
    shared = fit(grams)
    by_set = _split(grams, [lesson.instruction_set for lesson in lessons], lambda _: shared)
    nothing = np.zeros_like(shared)
    set_of = {lesson.device_model: lesson.instruction_set for lesson in lessons}
    by_device = _split(
        grams, [lesson.device_model for lesson in lessons], lambda device: shared + by_set.get(set_of[device], nothing)
    )
    total = {device: own + by_set.get(set_of[device], nothing) for device, own in by_device.items()}
    return by_set, total


def _split(grams: Sequence[Gram], keys: Sequence[str], shared: Callable[[str], Vector]) -> dict[str, Vector]:
    names = sorted(set(keys) - {""})
    if len(names) < 2:
        return {}
    return {
        name: fit_residual([gram for gram, key in zip(grams, keys, strict=True) if key == name], shared(name))
        for name in names
    }
