"""Sums of products, of which linear fits need nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
