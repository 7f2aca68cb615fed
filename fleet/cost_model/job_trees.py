"""Trees on the records of one job: records in, a model snapshot out. Stateless; runs in a worker of the build pool.

MetaSchedule describes a program by a feature row for each of its stores. Its own XGBModel gives each row a value and
adds them up, so it cannot learn that more stores are worse. Here a candidate is one row: the sum and the maximum over
its stores, and their number. That ranked candidates of a second search as well or better (measured on a matrix product
and a 1x1 convolution, 64 records each), and needs no objective of its own. Features are extracted once, where the
candidate is built, and training needs no TVM.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model import trees
from fleet.cost_model.pooling import plainly_pooled
from fleet.cost_model.samples import weights_of
from fleet.domain.observation import Features, Observation

_MIN_RECORDS = 8
"""Number of records below which the trees fit noise, and a random choice explores better."""

_PARAMETERS = {"eta": 0.1, "gamma": 0.001, "min_child_weight": 0}
_ROUNDS = 100
_MIN_WEIGHT = 0.1
"""A good candidate counts up to ten times as much as a bad one or a failure."""


class JobTrees:
    """Trained trees, ready to score."""

    def __init__(self, snapshot: bytes) -> None:
        self._trees = trees.load(snapshot)

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        """Return a score per candidate: higher is faster. 0 for one without any store."""
        scores = np.zeros(len(features))
        filled = [index for index, stores in enumerate(features) if len(stores)]
        if filled:
            scores[filled] = self._trees.values(plainly_pooled([features[index] for index in filled]))
        return scores


def are_enough(records: Sequence[Observation]) -> bool:
    """Tell whether there are enough records to train on."""
    return sum(math.isfinite(record.run_sec) and record.has_features for record in records) >= _MIN_RECORDS


def learn(records: Sequence[Observation], *, seed: int = 0) -> bytes | None:
    """Return a snapshot for `propose`, or None while there are too few records."""
    if not are_enough(records):
        return None
    usable = [record for record in records if record.has_features]
    best: dict[str, float] = {}
    for record in usable:
        best[record.workload] = min(best.get(record.workload, math.inf), record.run_sec)
    scores = np.array([_score(record, best) for record in usable], np.float32)
    return fit_trees([record.features for record in usable], scores, counts=weights_of(usable), seed=seed)


def fit_trees(
    features: Sequence[Features],
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
    weights = np.maximum(scores, _MIN_WEIGHT) * (1 if counts is None else counts)
    fitted = trees.fit(plainly_pooled(features), scores, weights, _PARAMETERS, rounds=_ROUNDS, seed=seed)
    return fitted.to_bytes()


def _score(record: Observation, best: dict[str, float]) -> float:
    if not math.isfinite(record.run_sec) or not math.isfinite(best[record.workload]) or record.run_sec <= 0:
        return 0.0
    return best[record.workload] / record.run_sec
