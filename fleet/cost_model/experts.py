"""The mean of three different models: ridge regression, trees and a network.

All predict how a candidate compares with others of its workload, in units of that workload's spread: 0 is the mean,
higher is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fleet.cost_model import network, ridge, trees
from fleet.cost_model.pooling import Reference, Rows, pooled
from fleet.cost_model.samples import Group

if TYPE_CHECKING:
    from xgboost import QuantileDMatrix

Vector = NDArray[np.float32]

_LEAST_SPREAD = 0.07
"""Of logarithms of times: if a workload's candidates hardly differ, their order is noise."""

PARTS = ("ridge", "trees", "network")
"""Rows of `Experts.parts`."""

_TREES = 20
_PASSES = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A workload's candidates, prepared for training the experts."""

    group: Group
    rows: Rows
    """Relative, [n_candidates, n_columns]."""

    targets: Vector
    """Standardized logarithms of the times, [n_candidates]."""

    gram: ridge.Gram


def prepare(group: Group) -> Prepared:
    """Return a group with its rows and targets."""
    rows = pooled(group.features)
    relative = Reference.of(rows).relative(rows)
    targets = standardized(group.log_sec)
    return Prepared(group=group, rows=relative, targets=targets, gram=ridge.Gram.of(relative, targets, group.weights))


def standardized(log_sec: Vector) -> Vector:
    """Return logarithms of times in units of their spread, around 0."""
    values: Vector = (log_sec - log_sec.mean()) / (log_sec.std() + np.float32(_LEAST_SPREAD))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Three models trained on some workloads."""

    weights: Vector
    """Of the ridge regression, [n_columns]."""

    booster: bytes
    network: network.Network
    scale: float
    """Divisor of the network's values."""

    def values(self, rows: Rows, of_network: Vector, residual: Vector | None = None) -> Vector:
        """Return a value per candidate.

        Args:
            rows: relative to candidates of the same workload.
            of_network: the network's values, less their mean over these candidates.
            residual: the device's addition to the ridge regression's weights.
        """
        mean: Vector = (self.parts(rows, of_network, residual).sum(axis=0) / len(PARTS)).astype(np.float32)
        return mean

    def parts(self, rows: Rows, of_network: Vector, residual: Vector | None = None) -> NDArray[np.float32]:
        """Return the values of each part, [n_parts, n_candidates]; the arguments are those of `values`."""
        weights = self.weights if residual is None else self.weights + residual
        of_trees = trees.load(self.booster).values(rows)
        return np.stack([rows @ weights, of_trees, of_network / np.float32(self.scale)])


def train(prepared: Sequence[Prepared], matrix: QuantileDMatrix, left_out: Sequence[bool], *, seed: int) -> Experts:
    """Fit experts to all workloads except the held-out ones.

    Args:
        matrix: the rows of all workloads, of `binned`.
    """
    seen = [one for one, is_left_out in zip(prepared, left_out, strict=True) if not is_left_out]
    weights = [
        np.zeros_like(one.group.weights) if is_left_out else one.group.weights
        for one, is_left_out in zip(prepared, left_out, strict=True)
    ]
    lessons = [
        network.Lesson(features=one.group.features, targets=one.targets, weights=one.group.weights) for one in seen
    ]
    fitted = network.train(lessons, passes=_PASSES, seed=seed)
    spreads = [fitted.values(one.group.features).std() for one in seen]
    return Experts(
        weights=ridge.fit([one.gram for one in seen]),
        booster=trees.fit_binned(matrix, np.concatenate(weights), rounds=_TREES, seed=seed).to_bytes(),
        network=fitted,
        scale=float(np.mean(spreads)) + 1e-6,
    )


def binned(prepared: Sequence[Prepared]) -> QuantileDMatrix:
    """Return the rows of all workloads in XGBoost's binned form."""
    return trees.binned(
        np.concatenate([one.rows for one in prepared]), np.concatenate([one.targets for one in prepared])
    )


def residuals(prepared: Sequence[Prepared]) -> tuple[Mapping[str, Vector], Mapping[str, Vector]]:
    """Return the residual weights of instruction sets, and then of device models, for the ridge regression.

    A device model's residual includes that of its instruction set, which it borrows from its siblings. Nothing can be
    told apart where there is only one of them.
    """
    shared = ridge.fit([one.gram for one in prepared])
    by_set = _split(prepared, lambda one: one.group.instruction_set, lambda _: shared)
    nothing = np.zeros_like(shared)
    set_of = {one.group.device_model: one.group.instruction_set for one in prepared}
    by_device = _split(
        prepared, lambda one: one.group.device_model, lambda device: shared + by_set.get(set_of[device], nothing)
    )
    total = {device: own + by_set.get(set_of[device], nothing) for device, own in by_device.items()}
    return by_set, total


def _split(
    prepared: Sequence[Prepared], key: Callable[[Prepared], str], shared: Callable[[str], Vector]
) -> dict[str, Vector]:
    names = sorted({key(one) for one in prepared} - {""})
    if len(names) < 2:
        return {}
    return {
        name: ridge.fit_residual([one.gram for one in prepared if key(one) == name], shared(name)) for name in names
    }
