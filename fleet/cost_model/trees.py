"""Gradient-boosted trees on rows: arrays in, bytes out."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]

_PARAMETERS = {
    "objective": "reg:squarederror",
    "tree_method": "hist",
    "max_depth": 4,
    "max_bin": 32,
    "eta": 0.1,
    "subsample": 0.8,
    "colsample_bytree": 0.3,
    "base_score": 0.0,
    "nthread": 1,  # other workers use the other cores
    "verbosity": 0,
}


def train(
    rows: Rows, targets: NDArray[np.float32], weights: NDArray[np.float32], *, rounds: int, seed: int = 0
) -> bytes:
    """Fit trees to targets [n_rows]."""
    import xgboost

    matrix = xgboost.QuantileDMatrix(rows, label=targets, weight=weights, nthread=1, max_bin=_PARAMETERS["max_bin"])
    booster = xgboost.train({**_PARAMETERS, "seed": seed}, matrix, num_boost_round=rounds)
    return bytes(booster.save_raw("ubj"))


class Trees:
    """Trained trees."""

    def __init__(self, content: bytes) -> None:
        import xgboost

        self._booster = xgboost.Booster({"nthread": 1})
        self._booster.load_model(bytearray(content))

    def values(self, rows: Rows) -> NDArray[np.float32]:
        """Return a value for each row."""
        values: NDArray[np.float32] = self._booster.inplace_predict(rows)
        return values


@functools.lru_cache(maxsize=32)
def load(content: bytes) -> Trees:
    """Return trained trees; read once per process."""
    return Trees(content)
