"""Gradient-boosted trees that score candidates from their stores, as MetaSchedule's XGBModel does.

A candidate has a feature row for each store of its program. The trees give each row a value, and a candidate's score
is the sum over its rows; training pulls that sum towards best time / own time, within (0, 1]. The stock XGBModel mixes
this with feature extraction and writes its state as a tar; here it is a function from arrays to bytes, so that features
are extracted once, where the candidate is built, and training needs no TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PARAMETERS = {
    "max_depth": 6,
    "gamma": 0.001,
    "min_child_weight": 0,
    "eta": 0.1,
    "base_score": 0.0,
    "nthread": 1,
    "verbosity": 0,
}
"""Near the stock model's, except: rows start at 0, since a start of 0.5 for each row favours programs with many stores
(0.2 better rank correlation between two searches of a matrix product); one thread, as other workers use the others."""

_MAX_ROUNDS = 300
_PATIENCE = 20
"""Rounds without a better fit after which training ends."""

_MIN_GAIN = 1e-5
_MIN_WEIGHT = 0.1
"""Of a failure: enough that the model learns to avoid it, where the stock model gives it none."""


def train(features: Sequence[NDArray[np.float32]], scores: NDArray[np.float32], *, seed: int = 0) -> bytes:
    """Fit trees to scores.

    Args:
        features: per candidate float32 [n_stores, n_features], at least one store each.
        scores: float32 [n_candidates], best time of the workload / own time; 0 for a failure.
    """
    import xgboost

    rows, owners = _stack(features)
    matrix = xgboost.DMatrix(rows, label=scores[owners])
    booster = xgboost.Booster({**_PARAMETERS, "seed": seed}, [matrix])
    fit = _Fit(owners, scores)
    for iteration in range(_MAX_ROUNDS):
        booster.update(matrix, iteration, fobj=fit)
        if fit.is_stale:
            break
    return bytes(booster.save_raw("ubj"))


class _Fit:
    """The objective: squared error of the summed rows, good candidates weighing more. Watches its own progress."""

    def __init__(self, owners: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        self._owners = owners
        self._scores = scores
        self._best = np.inf
        self._rounds_without_gain = 0

    def __call__(self, rows: NDArray[np.float32], _: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        residual = np.bincount(self._owners, weights=rows, minlength=len(self._scores)) - self._scores
        error = float(np.sqrt(np.mean(residual**2)))
        self._rounds_without_gain = 0 if error < self._best - _MIN_GAIN else self._rounds_without_gain + 1
        self._best = min(self._best, error)
        weights = np.maximum(self._scores, _MIN_WEIGHT)[self._owners]
        return residual[self._owners] * weights, weights

    @property
    def is_stale(self) -> bool:
        return self._rounds_without_gain > _PATIENCE


class Trees:
    """Trained trees, ready to score."""

    def __init__(self, snapshot: bytes) -> None:
        import xgboost

        self._booster: Any = xgboost.Booster({"nthread": 1})
        self._booster.load_model(bytearray(snapshot))

    def score(self, features: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Return a score per candidate: higher is faster. 0 for one without any store."""
        import xgboost

        rows, owners = _stack(features)
        if not len(rows):
            return np.zeros(len(features))
        values = self._booster.predict(xgboost.DMatrix(rows))
        return np.bincount(owners, weights=values, minlength=len(features)).astype(np.float64)


def _stack(features: Sequence[NDArray[np.float32]]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return all rows, and for each the index of its candidate."""
    counts = [len(rows) for rows in features]
    owners = np.repeat(np.arange(len(features)), counts)
    filled = [rows for rows in features if len(rows)]
    return (np.concatenate(filled) if filled else np.zeros((0, 0), np.float32)), owners
