"""Linear regression on relative rows, with a residual for each instruction set and each device model.

A group's Gram matrix is all that is needed of it, so each fit solves one small system. So do the residuals: the
correction of a device to that of its instruction set to the weights that all devices share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

STRENGTH = 0.02
"""Ridge penalty on the weights of normalized columns, as a share of the number of records."""

RESIDUAL_STRENGTH = 0.2
"""A residual is held down more: there is less to learn it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gram:
    """Sums of products over the records of one workload."""

    rows: NDArray[np.float64]
    """[n_columns, n_columns]."""

    targets: NDArray[np.float64]
    """[n_columns]."""

    weight: float
    """Sum of the records' weights."""

    @classmethod
    def of(cls, rows: NDArray[np.float32], targets: NDArray[np.float32], weights: NDArray[np.float32]) -> Gram:
        """Return the sums of weighted records."""
        weighted = rows * weights[:, None]
        return cls(rows=(weighted.T @ rows).astype(np.float64), targets=weighted.T @ targets, weight=weights.sum())


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
