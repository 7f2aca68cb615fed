"""Conditions the shared model on the records of a small lab: a level and a slope for each device model and each kind of
operator.

A handful of workloads cannot train a model, but tells how much faster or slower a device is than those that the model
was trained on, and how much its candidates differ. Both are shrunk: a kind's towards its device's, and a device's
towards the model's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from fleet.cost_model.calibration import Calibration, Line
from fleet.cost_model.part import Vector
from fleet.cost_model.samples import Context, Group

LEAST_RECORDS = 8
"""A device model with fewer records is not corrected."""

SURE = 1.64
"""Number of standard errors above zero at which a mean error counts as larger: 95 %."""

_HALF = 4.0
"""Number of records at which a workload's level counts half of one that is known exactly."""

_PRIOR_WORKLOADS = 1.0
"""Weight of the prior level, in workloads."""

_KIND_WORKLOADS = 2.0
"""The same for a kind of operator, whose prior is the level of its device."""

_LEAST_SLOPE = 0.05
"""Corrections never reverse the order of a workload's candidates."""

_LEAST_VARIANCE = 1e-3
"""Added to the variance of slopes: a model of a few workloads is not exact."""

ALL_KINDS = ""
"""Kind of the correction for operators of which the lab has no records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Line of the times of one kind of operator on one device model."""

    device_model: str
    kind: str
    records: int
    """Records that it was fitted to."""

    level: float
    """Added to the logarithm of the time that the model expects of a workload."""

    level_spread: float
    """Standard deviation of the level over workloads."""

    slope: float
    """Logarithm of the time per unit of value."""


Corrections = Mapping[tuple[str, str], Correction]
"""By device model and kind of operator."""

NO_CORRECTIONS: Corrections = MappingProxyType({})


@dataclass(frozen=True)
class Evidence(Group):
    """A group of measured candidates, beside the model's values."""

    values: Vector
    """[n_candidates]; higher is slower."""

    def part(self, first: int, step: int) -> Evidence:
        """Return every `step`-th candidate, beginning with `first`."""
        return Evidence(self.observations[first::step], self.values[first::step])


def corrected_line(usual: Calibration, corrections: Corrections, context: Context) -> Line:
    """Return the line of a workload without records of its own."""
    start, per_work = usual.level
    level = start + per_work * math.log(context.flop + 1)
    device_model = context.device_model
    found = corrections.get((device_model, context.kind)) or corrections.get((device_model, ALL_KINDS))
    if found is None:
        return Line(level=level, level_spread=usual.level_spread, slope=usual.slope, slope_spread=usual.slope_spread)
    return Line(
        level=level + found.level,
        level_spread=found.level_spread,
        slope=found.slope,
        slope_spread=usual.slope_spread,
    )


def fit_corrections(usual: Calibration, evidence: Sequence[Evidence]) -> Corrections:
    """Return the corrections for all device models with enough records, whatever the order of the evidence."""
    found: list[Correction] = []
    ordered = sorted(evidence, key=lambda one: (one.device_model, one.kind, one.workload))
    for device_model, group in itertools.groupby(ordered, key=lambda one: one.device_model):
        of_device = list(group)
        if sum(len(one) for one in of_device) < LEAST_RECORDS:
            continue
        prior = Correction(
            device_model=device_model,
            kind=ALL_KINDS,
            records=0,
            level=0.0,
            level_spread=usual.level_spread,
            slope=usual.slope,
        )
        device = _fit(usual, of_device, prior, ALL_KINDS)
        found.append(device)
        for kind, some in itertools.groupby(of_device, key=lambda one: one.kind):
            if kind != ALL_KINDS:
                found.append(_fit(usual, list(some), device, kind))
    return {(one.device_model, one.kind): one for one in found}


def are_not_worse(usual: Calibration, evidence: Sequence[Evidence], *, sure: float = SURE) -> bool:
    """Tell whether corrections predict left-out records no worse than the model alone: a paired test.

    Each workload is left out once; of a single workload, each half of its candidates.

    Args:
        sure: how many standard errors the mean difference has to be above zero to call them worse.

    Returns:
        False if there is too little to correct.
    """
    if not fit_corrections(usual, evidence):
        return False
    blocks = _blocks(evidence)
    differences = []
    for block in blocks:
        rest = [one for other in blocks if other is not block for one in other]
        corrections = fit_corrections(usual, rest)
        differences += [_error(usual, corrections, one) - _error(usual, NO_CORRECTIONS, one) for one in block]
    error = np.std(differences, ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return bool(np.mean(differences) <= sure * error)


def _blocks(evidence: Sequence[Evidence]) -> list[list[Evidence]]:
    workloads = sorted({one.workload for one in evidence})
    if len(workloads) == 1:
        return [[one.part(first, 2) for one in evidence if len(one) > first] for first in (0, 1)]
    return [[one for one in evidence if one.workload == workload] for workload in workloads]


def _error(usual: Calibration, corrections: Corrections, one: Evidence) -> float:
    """Return the mean distance of predicted from measured logarithms of times."""
    line = corrected_line(usual, corrections, one.context)
    distances = np.abs(line.level + line.slope * one.values - one.log_sec)
    return float(np.average(distances, weights=one.weights))


def _fit(usual: Calibration, evidence: Sequence[Evidence], prior: Correction, kind: str) -> Correction:
    """Return the posterior of a line, given its prior."""
    held = usual.noise**2 / (usual.slope_spread**2 + _LEAST_VARIANCE)
    products = np.array([_products(one) for one in evidence])
    own = float((products[:, 0].sum() + held * prior.slope) / (products[:, 1].sum() + held))
    slope = max(_LEAST_SLOPE, own)
    start, per_work = usual.level
    offsets = np.array(
        [
            np.average(one.log_sec - slope * one.values, weights=one.weights)
            - start
            - per_work * math.log(one.flop + 1)
            for one in evidence
        ]
    )
    counts = np.array([len(one) for one in evidence])
    weights = counts / (counts + _HALF)
    prior_workloads = _PRIOR_WORKLOADS if kind == ALL_KINDS else _KIND_WORKLOADS
    total = weights.sum() + prior_workloads
    level = float((weights @ offsets + prior_workloads * prior.level) / total)
    variance = (weights @ (offsets - level) ** 2 + prior_workloads * prior.level_spread**2) / total
    return Correction(
        device_model=prior.device_model,
        kind=kind,
        records=int(counts.sum()),
        level=level,
        level_spread=float(np.sqrt(variance)),
        slope=slope,
    )


def _products(one: Evidence) -> tuple[float, float]:
    """Return the sums of products of values with times, and with themselves, around their means."""
    centred = one.values - np.average(one.values, weights=one.weights)
    return float((one.weights * centred) @ one.log_sec), float((one.weights * centred) @ centred)
