"""The interface of the cost model's parts: arrays in, arrays out.

A part predicts how a candidate compares with others of its workload, in units of that workload's spread: 0 is the
mean, higher is slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.gram import Gram
from fleet.cost_model.pooling import Rows
from fleet.cost_model.samples import Group
from fleet.domain.observation import Features

Vector = NDArray[np.float32]
Arrays = Mapping[str, NDArray[np.generic]]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Candidates of one workload."""

    features: Sequence[Features]
    """Features of each candidate, with at least one store."""

    rows: Rows
    """Features, pooled and relative to the workload's frame, [n_candidates, n_columns]."""

    residual: Vector | None = None
    """The device's addition to the weights of a linear part, [n_columns]."""


@dataclass(frozen=True)
class Lesson(Group):
    """A group of measured candidates, with the arrays that parts are fitted to."""

    rows: Rows
    """Relative, [n_candidates, n_columns]."""

    targets: Vector
    """Standardized logarithms of the times, [n_candidates]; higher is slower."""

    @cached_property
    def gram(self) -> Gram:
        """Sums of products for linear fits: all folds and the residuals share them."""
        return Gram.of(self.rows, self.targets, self.weights)


class Part(Protocol):
    """A trained part. It is stored in snapshots, which come from other machines: as arrays, never as code."""

    name: ClassVar[str]

    @classmethod
    def fit(cls, lessons: Sequence[Lesson], folds: Sequence[int], *, seed: int) -> Sequence[Part]:
        """Return a part for each fold, trained without the lessons of that fold; the seed of fold n is `seed` + n.

        Args:
            folds: the fold of each lesson, from 0.
        """

    def level(self, features: Sequence[Features]) -> float:
        """Return the mean value of a frame's candidates; 0 if all values are relative to the frame."""

    def values(self, candidates: Candidates, level: float) -> Vector:
        """Return a value per candidate, less the level."""

    def arrays(self) -> Arrays:
        """Return the part for a snapshot. No two parts share the name of an array."""

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Part:
        """Read a part from the arrays of all parts."""


def other_folds(of_lessons: Sequence[T], folds: Sequence[int]) -> list[list[T]]:
    """Return for each fold the values of the lessons of all other folds.

    Args:
        of_lessons: a value per lesson.
    """
    return [
        [value for value, its in zip(of_lessons, folds, strict=True) if its != fold] for fold in range(max(folds) + 1)
    ]
