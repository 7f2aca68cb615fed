"""Predicts times of candidates with their uncertainty, from the shared model and the workload's own records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model.calibration import Calibration, Line
from fleet.cost_model.corrections import corrected_line
from fleet.cost_model.model import MEMBERS, CostModel, Frame, spread_out
from fleet.cost_model.samples import Context, Group, grouped
from fleet.cost_model.workload_trees import OwnTrees, weight_of
from fleet.domain.observation import Features
from fleet.errors import InvalidRequest

_USUAL_RECORDS = 12.0
"""Weight of the usual line, in records of the workload's own."""

_USUAL_WEIGHT = 6.0
"""The same weight as a sum of squared values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Natural logarithms of times [s] of some candidates of one workload."""

    log_sec: NDArray[np.float32]
    """Mean, [n_candidates]."""

    members: NDArray[np.float32]
    """[n_members, n_candidates]: equally likely answers. A member's error for a workload (level and spread of its
    times) applies to all its candidates.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionedModel:
    """The shared model conditioned on the records of one workload."""

    model: CostModel
    context: Context
    frame: Frame
    line: Line
    own: OwnTrees | None = None
    """None with too few records."""

    own_share: float = 0.0
    """Share of a prediction that comes from the workload's own records."""

    def predict(self, features: Sequence[Features]) -> Prediction:
        """Return predictions for candidates.

        Raises:
            InvalidRequest: features of another version.
        """
        line, share = self.line, self.own_share
        values = self.values(features)
        shared = line.level + line.slope * values
        mean = shared.mean(axis=0)
        if self.own is not None:
            shared = (1 - share) * shared + share * self.own.log_sec(features, mean)
            mean = shared.mean(axis=0)
        lift = spread_out(MEMBERS)[:, None] * np.float32(line.level_spread)
        tilt = spread_out(MEMBERS, shift=3)[:, None] * np.float32(line.slope_spread * (1 - share)) * values.mean(axis=0)
        apart = shared[np.arange(MEMBERS) % len(values)]
        members = mean + apart - apart.mean(axis=0) + lift + tilt
        members += _errors(len(features), self.model.calibration.noise)
        return Prediction(log_sec=mean.astype(np.float32), members=members.astype(np.float32))

    def values(self, features: Sequence[Features]) -> NDArray[np.float32]:
        """Return the shared model's values, [n_members, n_candidates]; higher is slower."""
        _check(self.model, features)
        return self.model.values(self.frame, features, self.context)


def condition(model: CostModel, context: Context, frame: Frame) -> ConditionedModel:
    """Train on a workload's own records, once for all candidates of a batch or a search.

    Args:
        frame: candidates that all others are compared with.

    Raises:
        InvalidRequest: features of another version.
    """
    own = next(iter(grouped(context.known)), None)
    usual = corrected_line(model.calibration, model.corrections, context)
    shared = ConditionedModel(model=model, context=context, frame=frame, line=usual)
    if own is None:
        return shared
    values = shared.values(own.features)
    line = _own_line(model.calibration, usual, values.mean(axis=0), own)
    share = weight_of(len(own))
    mean = (line.level + line.slope * values).mean(axis=0)
    trees = OwnTrees(own.features, mean, own.log_sec, own.weights) if share else None
    return replace(shared, line=line, own=trees, own_share=share)


def predict(model: CostModel, features: Sequence[Features], context: Context) -> Prediction:
    """Return predictions for candidates, compared with one another and the known ones.

    Args:
        features: of each candidate, with at least one store.

    Raises:
        InvalidRequest: features of another version.
    """
    known = [feature for group in grouped(context.known)[:1] for feature in group.features]
    _check(model, [*features, *known])
    return condition(model, context, model.frame([*features, *known])).predict(features)


def _check(model: CostModel, features: Sequence[Features]) -> None:
    if any(one.ndim != 2 or one.shape[1] != model.width or not len(one) for one in features):
        raise InvalidRequest(f"these features are not those of the snapshot, which has {model.width} columns per store")


def _own_line(calibration: Calibration, usual: Line, values: NDArray[np.float32], known: Group) -> Line:
    """Fit a line to a workload's own records, with the usual one as prior."""
    middle, log_sec = (float(np.average(each, weights=known.weights)) for each in (values, known.log_sec))
    centred = values - middle
    own = float((known.weights * centred) @ (known.log_sec - log_sec))
    slope = (own + _USUAL_WEIGHT * usual.slope) / (float((known.weights * centred) @ centred) + _USUAL_WEIGHT)
    return Line(
        level=log_sec - slope * middle,
        level_spread=calibration.noise / math.sqrt(len(known)),
        slope=slope,
        slope_spread=usual.slope_spread * math.sqrt(_USUAL_RECORDS / (_USUAL_RECORDS + len(known))),
    )


def _errors(count: int, noise: float) -> NDArray[np.float32]:
    """Return the members' errors for single candidates, [n_members, count]; deterministic."""
    drawn = np.random.default_rng(0).standard_normal((count, MEMBERS)).astype(np.float32).T
    errors: NDArray[np.float32] = (drawn - drawn.mean(axis=0)) * np.float32(noise)
    return errors
