"""Gradient-boosted trees that score candidates: arrays in, bytes out.

MetaSchedule describes a program by a feature row for each of its stores. Its own XGBModel gives each row a value and
adds them up, so it cannot learn that more stores are worse. Here a candidate is one row: the sum and the maximum over
its stores, and their number. That ranked candidates of a second search as well or better (measured on a matrix product
and a 1x1 convolution, 64 records each), and needs no objective of its own. Features are extracted once, where the
candidate is built, and training needs no TVM.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PARAMETERS = {
    "objective": "reg:squarederror",
    "max_depth": 4,
    "eta": 0.1,
    "gamma": 0.001,
    "min_child_weight": 0,
    "base_score": 0.0,
    "nthread": 1,  # other workers use the other cores
    "verbosity": 0,
}
_ROUNDS = 100
_MIN_WEIGHT = 0.1
"""A good candidate counts up to ten times as much as a bad one or a failure."""


def train(
    features: Sequence[NDArray[np.float32]],
    scores: NDArray[np.float32],
    *,
    counts: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> bytes:
    """Fit trees to scores.

    Args:
        features: per candidate float32 [n_stores, n_features], at least one store each.
        scores: float32 [n_candidates], best time of the workload / own time; 0 for a failure.
        counts: float32 [n_candidates], how far each score is to be believed; None: all are alike.
    """
    import xgboost

    weights = np.maximum(scores, _MIN_WEIGHT) * (1 if counts is None else counts)
    matrix = xgboost.DMatrix(_rows(features), label=scores, weight=weights)
    booster = xgboost.train({**_PARAMETERS, "seed": seed}, matrix, num_boost_round=_ROUNDS)
    return bytes(booster.save_raw("ubj"))


class BoostedTrees:
    """Trained trees, ready to score."""

    def __init__(self, snapshot: bytes) -> None:
        import xgboost

        self._booster = xgboost.Booster({"nthread": 1})
        self._booster.load_model(bytearray(snapshot))

    def score(self, features: Sequence[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Return a score per candidate: higher is faster. 0 for one without any store."""
        import xgboost

        scores = np.zeros(len(features))
        filled = [index for index, stores in enumerate(features) if len(stores)]
        if filled:
            scores[filled] = self._booster.predict(xgboost.DMatrix(_rows([features[index] for index in filled])))
        return scores


def _rows(features: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Return float32 [n_candidates, 2 * n_features + 1]."""
    return np.stack(
        [np.concatenate([stores.sum(axis=0), stores.max(axis=0), [len(stores)]]) for stores in features]
    ).astype(np.float32)
