"""Relation of a model's values to logarithms of times."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Calibration of values to times, learnt on held-out workloads."""

    slope: float
    """Logarithm of the time per unit of value."""

    slope_spread: float
    """Standard deviation of the slope over workloads."""

    noise: float
    """Standard deviation of a candidate's logarithm of the time around the line of its workload."""

    level: tuple[float, float]
    """Logarithm of a workload's mean time, as a line over the logarithm of its operations."""

    level_spread: float
    """Standard deviation around that line over workloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Logarithm of the time over the shared model's value, in one workload."""

    level: float
    level_spread: float
    slope: float
    slope_spread: float
