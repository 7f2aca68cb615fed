"""The cost model that workloads share: members trained with different folds left out, calibrated on those.

Each member of the ensemble has left out another part of the workloads. So there are honest predictions for all of them
without any further training, and from these follow the slope that turns values into logarithms of times, its spread
over workloads, and the error of a single candidate: the parts of a member's prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model import experts
from fleet.cost_model.calibration import Calibration
from fleet.cost_model.corrections import NO_CORRECTIONS, Corrections, Evidence
from fleet.cost_model.experts import Experts
from fleet.cost_model.part import Candidates, Vector
from fleet.cost_model.pooling import Reference, pooled
from fleet.cost_model.ranking import ranked_right
from fleet.cost_model.ridge import residuals
from fleet.cost_model.samples import NO_CONTEXT, Context, Group
from fleet.domain.observation import Features

FOLDS = 2
MEMBERS = 12
"""Number of members of a prediction."""

_ENOUGH_RECORDS = 8
"""Workloads with fewer say little about how far the model can be believed."""

_LEAST_SLOPE = 0.05
"""A model that ranks new workloads at random still has an opinion, though one that counts little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Reference candidates of a workload, with which others are compared."""

    reference: Reference
    levels: tuple[tuple[float, ...], ...]
    """Level of each member's parts for them, [n_members, n_parts]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """A trained model."""

    width: int
    """Features per store."""

    members: tuple[Experts, ...]
    by_instruction_set: Mapping[str, Vector]
    by_device: Mapping[str, Vector]
    calibration: Calibration
    left_out_pairs: float
    """Share of pairs that members ranked right in workloads that they had not seen, mean over workloads."""

    corrections: Corrections = field(default_factory=lambda: NO_CORRECTIONS)
    """Of the lab's device models, where the model was conditioned on its records."""

    def frame(self, features: Sequence[Features]) -> Frame:
        """Return the frame of one workload's candidates: ideally some dozens, not chosen for their speed."""
        return Frame(
            reference=Reference.of(pooled(features)),
            levels=tuple(member.levels(features) for member in self.members),
        )

    def values(self, frame: Frame, features: Sequence[Features], context: Context = NO_CONTEXT) -> NDArray[np.float32]:
        """Return each member's values of candidates, [n_members, n_candidates]; higher is slower."""
        parts = self.parts(frame, features, context)
        mean: NDArray[np.float32] = (parts.sum(axis=1) / parts.shape[1]).astype(np.float32)
        return mean

    def parts(self, frame: Frame, features: Sequence[Features], context: Context = NO_CONTEXT) -> NDArray[np.float32]:
        """Return the values of each member's parts, [n_members, n_parts, n_candidates]."""
        candidates = Candidates(
            features=features,
            rows=frame.reference.relative(pooled(features)),
            residual=self.by_device.get(context.device_model, self.by_instruction_set.get(context.instruction_set)),
        )
        return np.stack(
            [
                member.values_by_part(candidates, levels)
                for member, levels in zip(self.members, frame.levels, strict=True)
            ]
        )


def evidence_of(model: CostModel, groups: Sequence[Group]) -> list[Evidence]:
    """Return the measured candidates of groups beside the model's values."""
    return [
        Evidence(
            group.observations,
            model.values(model.frame(group.features), group.features, group.context).mean(axis=0),
        )
        for group in groups
    ]


def train_model(groups: Sequence[Group], *, seed: int = 0) -> CostModel:
    """Fit a model to groups of at least two workloads."""
    lessons = [experts.lesson_of(group) for group in groups]
    folds = _folds(groups, seed)
    members = experts.train_experts(lessons, folds, seed=seed)
    by_set, by_device = residuals(lessons)
    honest = []
    for lesson, fold in zip(lessons, folds, strict=True):
        residual = by_device.get(lesson.device_model, by_set.get(lesson.instruction_set))
        candidates = Candidates(features=lesson.features, rows=lesson.rows, residual=residual)
        honest.append(members[fold].values(candidates, members[fold].levels(lesson.features)))
    return CostModel(
        width=lessons[0].features[0].shape[1],
        members=members,
        by_instruction_set=by_set,
        by_device=by_device,
        calibration=calibrate(lessons, honest),
        left_out_pairs=float(
            np.mean([ranked_right(values, np.exp(one.log_sec)) for one, values in zip(lessons, honest, strict=True)])
        ),
    )


def calibrate(groups: Sequence[Group], honest: Sequence[Vector]) -> Calibration:
    """Return the calibration that converts values to times.

    Args:
        honest: a value for each candidate of each group, of a model that has not seen the group.
    """
    pairs = [
        (values - values.mean(), group.log_sec - group.log_sec.mean())
        for group, values in zip(groups, honest, strict=True)
        if len(group) >= _ENOUGH_RECORDS
    ] or [(values, group.log_sec) for group, values in zip(groups, honest, strict=True)]
    products = np.array([(values @ values, values @ times) for values, times in pairs])
    slope = max(_LEAST_SLOPE, float(products[:, 1].sum() / (products[:, 0].sum() + 1e-6)))
    noise = math.sqrt(sum(float(((times - slope * values) ** 2).mean()) for values, times in pairs) / len(pairs))
    # Slopes differ partly because there are few candidates: subtract the part explained by noise.
    own = products[:, 1] / (products[:, 0] + 1e-6)
    explained = float(np.mean(noise**2 / (products[:, 0] + 1e-6)))
    work = np.log([group.flop + 1 for group in groups])
    means = np.array([group.log_sec.mean() for group in groups])
    per_work = float(np.cov(work, means)[0, 1] / (work.var(ddof=1) + 1e-6)) if len(groups) > 2 else 0.0
    start = float(means.mean() - per_work * work.mean())
    return Calibration(
        slope=slope,
        slope_spread=math.sqrt(max(0.0, float(own.var()) - explained)),
        noise=noise,
        level=(start, per_work),
        level_spread=float((means - start - per_work * work).std()) + noise / math.sqrt(len(groups)),
    )


def spread_out(count: int, *, shift: int = 0) -> NDArray[np.float32]:
    """Return standard normal quantiles in a fixed order, each as far from the previous one as possible."""
    order = [(shift + 5 * index) % count for index in range(count)]
    quantiles = [NormalDist().inv_cdf((index + 0.5) / count) for index in order]
    values = np.array(quantiles, np.float32)
    scaled: NDArray[np.float32] = values / values.std()
    return scaled


def _folds(groups: Sequence[Group], seed: int) -> list[int]:
    """Return the fold of each group: one workload's groups on several devices share a fold."""
    workloads = sorted({group.workload for group in groups})
    order = np.random.default_rng(seed).permutation(len(workloads))
    folds = min(FOLDS, len(workloads))
    fold_of = {workload: int(place) % folds for workload, place in zip(workloads, order, strict=True)}
    return [fold_of[group.workload] for group in groups]
