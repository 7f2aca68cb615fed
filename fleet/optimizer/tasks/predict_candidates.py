"""Predicts times of candidates before they are built, with each member of the shared model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.samples import Context
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Features

LogSecs = NDArray[np.float32]
"""Natural logarithms of times [s], shape [n_members]."""

_FEWEST = 4
"""Records of the workload without which its times could be anything."""


def expected_of(found: Sequence[Features | None], model: Snapshot | None, context: Context) -> list[LogSecs | None]:
    """Return the predictions of candidates, None if there are none for a candidate.

    Args:
        found: features of candidates.
        model: that of all workloads.
    """
    has_features = [one is not None and len(one) > 0 for one in found]
    usable = sum(math.isfinite(one.run_sec) and one.has_features for one in context.known)
    if model is None or usable < _FEWEST or not any(has_features):
        return [None] * len(found)
    columns = iter(model.predict([one for one in found if one is not None and len(one)], context).members.T)
    return [next(columns) if is_known else None for is_known in has_features]
