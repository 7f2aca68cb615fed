"""Predicts times of candidates before they are built, with each member of the shared model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.prediction import predict
from fleet.cost_model.samples import Query
from fleet.cost_model.snapshot import Snapshot
from fleet.domain.observation import Features, Observation

LogSecs = NDArray[np.float32]
"""Natural logarithms of times [s], shape [n_members]."""

_FEWEST = 4
"""Records of the workload without which its times could be anything."""


def expected_of(
    found: Sequence[Features | None],
    known: Snapshot | None,
    observed: Sequence[Observation],
    *,
    flop: float,
    kind: str = "",
    device_model: str,
    instruction_set: str,
) -> list[LogSecs | None]:
    """Return the predictions of candidates, None if there are none for a candidate.

    Args:
        found: features of candidates.
        known: the model of all workloads.
        observed: candidates of the workload on this device model with known times.
        flop: operations of the workload.
        kind: kind of operator.
    """
    has_features = [one is not None and len(one) > 0 for one in found]
    usable = [one for one in observed if math.isfinite(one.run_sec) and one.has_features]
    if known is None or len(usable) < _FEWEST or not any(has_features):
        return [None] * len(found)
    query = Query(
        features=[one for one in found if one is not None and len(one)],
        flop=flop,
        kind=kind,
        device_model=device_model,
        instruction_set=instruction_set,
        known=usable,
    )
    columns = iter(predict(known.model, query).members.T)
    return [next(columns) if is_known else None for is_known in has_features]
