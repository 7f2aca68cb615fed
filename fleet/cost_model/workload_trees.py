"""Trees on a workload's own candidates, complementing the model of all workloads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model import trees
from fleet.cost_model.pooling import pooled
from fleet.domain.observation import Features

_PARAMETERS = {
    "eta": 0.1,
    "max_bin": 16,  # half the time of 256
    "subsample": 0.9,
    "colsample_bytree": 0.5,
}
_ROUNDS = 60
_HALF = 24.0
"""Number of own records at which a workload weighs as much as all others together."""

FEWEST = 4
"""Records of its own without which a workload is not believed at all."""


def weight_of(records: int) -> float:
    """Return the weight of the workload's own records in a prediction."""
    return records / (records + _HALF) if records >= FEWEST else 0.0


class OwnTrees:
    """Trained on the records of one workload, with the shared model's values as one more column."""

    def __init__(
        self,
        features: Sequence[Features],
        shared: NDArray[np.float32],
        log_sec: NDArray[np.float32],
        weights: NDArray[np.float32],
    ) -> None:
        """Train the trees.

        Args:
            shared: predictions of the shared model, [n_candidates].
            log_sec: logarithms of their times.
            weights: how much each of these counts.
        """
        self._mean = np.float32(np.average(log_sec, weights=weights))
        self._trees = trees.fit(_rows(features, shared), log_sec - self._mean, weights, _PARAMETERS, rounds=_ROUNDS)

    def log_sec(self, features: Sequence[Features], shared: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return predicted logarithms of times."""
        values: NDArray[np.float32] = self._trees.values(_rows(features, shared)) + self._mean
        return values


def _rows(features: Sequence[Features], shared: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.hstack([pooled(features), shared[:, None]]).astype(np.float32)
