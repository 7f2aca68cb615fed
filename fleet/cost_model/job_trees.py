"""Learns from measurements: records in, a model snapshot out. Stateless; runs in a worker of the build pool."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fleet.cost_model.boosting import train
from fleet.cost_model.observation import Observation
from fleet.cost_model.samples import DISTURBED_WEIGHT

_MIN_RECORDS = 8
"""Below this the trees fit noise, and a random choice explores better."""


def are_enough(records: Sequence[Observation]) -> bool:
    """Tell whether there are records enough to choose by."""
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
    counts = np.array([DISTURBED_WEIGHT if record.is_disturbed else 1.0 for record in usable], np.float32)
    return train([record.features for record in usable], scores, counts=counts, seed=seed)


def _score(record: Observation, best: dict[str, float]) -> float:
    if not math.isfinite(record.run_sec) or not math.isfinite(best[record.workload]) or record.run_sec <= 0:
        return 0.0
    return best[record.workload] / record.run_sec
