"""Times of candidates with their uncertainty: the shared model and the workload's own records together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.model import MEMBERS, Calibration, CostModel, Frame, spread_out
from fleet.cost_model.samples import Group, Query, grouped
from fleet.cost_model.workload_trees import OwnTrees, weight_of
from fleet.errors import InvalidRequest

_USUAL_RECORDS = 12.0
"""Weight of the usual line, in records of the workload's own."""

_USUAL_WEIGHT = 6.0
"""The same as a sum of squared values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Natural logarithms of times [s] of some candidates of one workload."""

    log_sec: NDArray[np.float32]
    """Mean, [n_candidates]."""

    members: NDArray[np.float32]
    """[n_members, n_candidates]: equally likely answers. A member's error for a workload (level and spread of its
    times) applies to all its candidates.
    """


def predict(model: CostModel, query: Query, frame: Frame | None = None) -> Prediction:
    """Return predictions for candidates.

    Args:
        frame: candidates to compare them with; None: one another, and the known ones.

    Raises:
        InvalidRequest: their features are of another version.
    """
    known = next(iter(grouped(query.known)), None)
    features = [*query.features, *(known.features if known else ())]
    if any(one.ndim != 2 or one.shape[1] != model.width or not len(one) for one in features):
        raise InvalidRequest(f"these features are not those of the snapshot, which has {model.width} columns per store")
    frame = frame or model.frame(features)
    values = model.values(frame, features, device_model=query.device_model, instruction_set=query.instruction_set)
    asked, count = len(query.features), len(known) if known else 0
    line = _line(model.calibration, query.flop, values.mean(axis=0)[asked:], known)
    shared = line.level + line.slope * values
    mean, own_share = shared.mean(axis=0), weight_of(count)
    if known and own_share:
        own = OwnTrees(known.features, mean[asked:], known.log_sec, known.weights).log_sec(features, mean)
        shared = (1 - own_share) * shared + own_share * own
        mean = shared.mean(axis=0)
    lift = spread_out(MEMBERS)[:, None] * np.float32(line.level_spread)
    tilt = spread_out(MEMBERS, shift=3)[:, None] * np.float32(line.slope_spread * (1 - own_share)) * values.mean(axis=0)
    apart = shared[np.arange(MEMBERS) % len(values)]
    members = mean + apart - apart.mean(axis=0) + lift + tilt + _errors(len(features), model.calibration.noise)
    return Prediction(log_sec=mean[:asked].astype(np.float32), members=members[:, :asked].astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """Logarithm of the time over the shared model's value, in one workload."""

    level: float
    level_spread: float
    slope: float
    slope_spread: float


def _line(usual: Calibration, flop: float, values: NDArray[np.float32], known: Group | None) -> _Line:
    """Return a workload's line, from its own records as far as there are any, else the usual one."""
    if known is None:
        start, per_work = usual.level
        level = start + per_work * math.log(flop + 1)
        return _Line(level=level, level_spread=usual.level_spread, slope=usual.slope, slope_spread=usual.slope_spread)
    middle, log_sec = (float(np.average(each, weights=known.weights)) for each in (values, known.log_sec))
    centred = values - middle
    own = float((known.weights * centred) @ (known.log_sec - log_sec))
    slope = (own + _USUAL_WEIGHT * usual.slope) / (float((known.weights * centred) @ centred) + _USUAL_WEIGHT)
    return _Line(
        level=log_sec - slope * middle,
        level_spread=usual.noise / math.sqrt(len(known)),
        slope=slope,
        slope_spread=usual.slope_spread * math.sqrt(_USUAL_RECORDS / (_USUAL_RECORDS + len(known))),
    )


def _errors(count: int, noise: float) -> NDArray[np.float32]:
    """Return the members' errors for single candidates, [n_members, count]; the same every time."""
    drawn = np.random.default_rng(0).standard_normal((count, MEMBERS)).astype(np.float32).T
    errors: NDArray[np.float32] = (drawn - drawn.mean(axis=0)) * np.float32(noise)
    return errors
