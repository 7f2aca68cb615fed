"""Trains snapshots from samples, and evaluates their ranking. Needs no TVM; 4,096 samples take about a second."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from fleet.cost_model import model as models
from fleet.cost_model.model import CostModel
from fleet.cost_model.prediction import predict
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.samples import Group, check, grouped
from fleet.cost_model.snapshot import Snapshot, pack
from fleet.domain.observation import Observation
from fleet.errors import InvalidRequest

LEAST_SAMPLES = 8
"""A workload with fewer is not learnt from: it has no spread to speak of."""

_LEAST_WORKLOADS = 2

SURE = 1.64
"""Standard errors below zero at which a mean is taken for less, 95 %."""


def train_snapshot(samples: Iterable[Observation], *, seed: int = 0) -> Snapshot:
    """Train on measurements of real devices, ignoring others.

    Raises:
        InvalidRequest: a sample that no measurement can have given, or fewer than two workloads with eight samples.
    """
    samples = list(samples)
    check(samples)
    groups = grouped(samples, least=LEAST_SAMPLES)
    workloads = len({group.workload for group in groups})
    if workloads < _LEAST_WORKLOADS:
        raise InvalidRequest(
            f"{workloads} workloads with at least {LEAST_SAMPLES} real samples; at least {_LEAST_WORKLOADS} are needed"
        )
    model = models.train_model(groups, seed=seed)
    metrics = {
        "workloads": float(workloads),
        "samples": float(sum(len(group) for group in groups)),
        "noise": model.calibration.noise,
        "left_out_pairs": model.left_out_pairs,
    }
    return pack(model, metrics)


def is_not_worse(candidate: Snapshot, current: Snapshot, holdout: Sequence[Observation], *, sure: float = SURE) -> bool:
    """Tell whether a snapshot may replace another: a paired test on workloads that neither was trained on.

    Args:
        sure: how many standard errors the mean difference has to be below zero to call it worse.
    """
    groups = grouped(holdout, least=LEAST_SAMPLES)
    if not groups:
        return True
    differences = np.array([_pairs(candidate.model, group) - _pairs(current.model, group) for group in groups])
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return bool(differences.mean() >= -sure * error)


def _pairs(model: CostModel, group: Group) -> float:
    return ranked_right(predict(model, group.features, group.context).log_sec, np.exp(group.log_sec))
