"""Converts candidates to rows: MetaSchedule's features of each store, pooled, and relative to other candidates of the
workload.

Absolute features tell the workload apart rather than its candidates: on workloads that were left out, trees on them
ranked .57 of pairs right, on relative ones .64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.domain.observation import Features

Rows = NDArray[np.float32]
"""float32, shape [n_candidates, n_columns]."""

_LARGEST = 60.0
"""Largest logarithm, so that sums stay finite."""

_LEAST_SPREAD = 0.25
"""Added to a column's spread: nearly constant columns must not weigh as much as others."""


def pooled(features: Sequence[Features]) -> Rows:
    """Return a row for each candidate: logarithm of the sum over its stores, their maximum, and their number.

    Args:
        features: each with at least one store.
    """
    counts = np.array([len(stores) for stores in features])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    stores = np.concatenate(features)
    summed = np.log2(np.add.reduceat(np.exp2(np.minimum(stores, _LARGEST)), starts, axis=0))
    return np.hstack([summed, np.maximum.reduceat(stores, starts, axis=0), counts[:, None]]).astype(np.float32)


def plainly_pooled(features: Sequence[Features]) -> Rows:
    """Return a row for each candidate: sum and maximum over its stores, and their number.

    The trees of a job take these. On the rows of `pooled` they would score otherwise than stored snapshots expect.
    """
    rows = [np.concatenate([stores.sum(axis=0), stores.max(axis=0), [len(stores)]]) for stores in features]
    return np.stack(rows).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Location and scale of one workload's candidates, shared by all that are ranked together."""

    middle: NDArray[np.float32]
    """float32 [n_columns], median."""

    spread: NDArray[np.float32]
    """float32 [n_columns], standard deviation."""

    @classmethod
    def of(cls, rows: Rows) -> Reference:
        """Return the reference of some candidates; ideally a few dozen that were not chosen for their speed."""
        return cls(middle=np.median(rows, axis=0), spread=rows.std(axis=0))

    def relative(self, rows: Rows) -> Rows:
        """Return rows as distances from the median, in units of the spread."""
        scaled: Rows = (rows - self.middle) / (self.spread + np.float32(_LEAST_SPREAD))
        return scaled
