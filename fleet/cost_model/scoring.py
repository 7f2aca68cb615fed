"""Scores for a search, combining the model of all workloads and this job's own records.

Scores are positive and about 1 for a usual candidate, twice as much for one of half the time: MetaSchedule's search
takes parents in proportion to their score, and counts negative ones as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.corrections import corrected_line
from fleet.cost_model.job_trees import JobTrees
from fleet.cost_model.model import CostModel, Frame
from fleet.cost_model.prediction import ConditionedModel, condition
from fleet.cost_model.samples import NO_CONTEXT, Context
from fleet.cost_model.snapshot import Snapshot
from fleet.cost_model.workload_trees import FEWEST, weight_of
from fleet.domain.observation import Features

_LEAST_SCORE = 0.02
"""Least score of the job's own trees: a candidate that is fifty times slower than the best may be slower still."""

_MOST = 4.0
"""Logarithms of scores are cut here."""


class Ranker:
    """Scores candidates of one workload, for the duration of one search."""

    def __init__(
        self, shared: Snapshot | None, own: bytes | None, context: Context = NO_CONTEXT, *, records: int
    ) -> None:
        """Combine models.

        Args:
            shared: model of all workloads; None: there is none for this kind of target.
            own: trees of `fleet.cost_model.job_trees`, of the job's own records.
            context: with some known records of the workload, the shared model is conditioned on them, once, and scores
                follow the expected times.
            records: how many of the job's own records are of this workload.
        """
        self._shared = shared.model if shared is not None else None
        self._own = JobTrees(own) if own is not None else None
        self._own_share = 1.0 if shared is None else weight_of(records) if own is not None else 0.0
        self._frame: Frame | None = None
        self._conditioned: ConditionedModel | None = None
        self._own_frame = (0.0, 1.0)
        self._context = context
        usable = [one for one in context.known if math.isfinite(one.run_sec) and one.has_features]
        self._measured = usable if len(usable) >= FEWEST else []

    @property
    def is_blind(self) -> bool:
        """True if there is no model to score with."""
        return self._shared is None and self._own is None

    def score(self, features: Sequence[Features]) -> NDArray[np.float64]:
        """Return a score per candidate: positive, higher is faster; close to 0 for one without any store."""
        scores = np.full(len(features), np.exp(-_MOST))
        filled = [index for index, stores in enumerate(features) if len(stores)]
        if not filled:
            return scores
        usable = [features[index] for index in filled]
        if self._frame is None and self._own_frame == (0.0, 1.0):
            self._set_frame(usable)
        scores[filled] = np.exp(-np.clip(self._slowness(usable), -_MOST, _MOST))
        return scores

    def _slowness(self, features: Sequence[Features]) -> NDArray[np.float32]:
        """Return how much slower than usual candidates are, as logarithms."""
        if self._conditioned is not None:
            usual = np.log([one.run_sec for one in self._measured]).mean(dtype=np.float32)
            slowness: NDArray[np.float32] = self._conditioned.predict(features).log_sec - usual
            return slowness
        total = np.zeros(len(features), np.float32)
        spread = np.float32(1.0)
        if self._shared is not None and self._frame is not None:
            values = self._shared.values(self._frame, features, self._context).mean(axis=0)
            spread = np.float32(self._usual_slope(self._shared))
            total += (1 - self._own_share) * spread * values
        if self._own is not None:
            middle, scale = self._own_frame
            own = (_log_time(self._own, features) - middle) / scale
            total += self._own_share * spread * own.astype(np.float32)
        return total

    def _usual_slope(self, shared: CostModel) -> float:
        return corrected_line(shared.calibration, shared.corrections, self._context).slope

    def _set_frame(self, features: Sequence[Features]) -> None:
        if self._shared is not None:
            self._frame = self._shared.frame([*features, *(one.features for one in self._measured)])
            if self._measured:
                self._conditioned = condition(self._shared, self._context, self._frame)
        if self._own is not None:
            logs = _log_time(self._own, features)
            self._own_frame = float(logs.mean()), float(logs.std()) + 0.1


def _log_time(trees: JobTrees, features: Sequence[Features]) -> NDArray[np.float64]:
    logs: NDArray[np.float64] = -np.log(np.maximum(trees.score(features), _LEAST_SCORE))
    return logs
