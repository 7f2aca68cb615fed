"""Comparison of an exported model's answers with the stored ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Result of comparing all outputs."""

    max_abs_error: float
    """Infinite where shapes differ, or only one side is finite."""

    allowed: float
    """Tolerance at the element with that error."""

    problem: str
    """The first output that is wrong, in a sentence; empty: all are right."""

    @property
    def is_right(self) -> bool:
        """Every element of every output is within its tolerance."""
        return not self.problem


def agree(outputs: Sequence[Array], expected: Sequence[Array], tolerances: Sequence[float]) -> Agreement:
    """Compare outputs with those expected: |output - expected| <= tolerance * (rms of expected + |expected|)."""
    if len(outputs) != len(expected):
        problem = f"{len(outputs)} outputs where {len(expected)} were expected"
        return Agreement(max_abs_error=math.inf, allowed=0.0, problem=problem)
    found = [_agree(*one) for one in zip(range(len(outputs)), outputs, expected, tolerances, strict=True)]
    return worst(found) if found else Agreement(max_abs_error=0.0, allowed=0.0, problem="")


def worst(found: Sequence[Agreement]) -> Agreement:
    """Combine several comparisons: the largest error, and the first problem."""
    largest = max(found, key=lambda agreement: agreement.max_abs_error)
    return Agreement(
        max_abs_error=largest.max_abs_error,
        allowed=largest.allowed,
        problem=next((agreement.problem for agreement in found if agreement.problem), ""),
    )


def relative_errors(output: Array, wanted: Array) -> NDArray[np.float64]:
    """Return the error of each element as a share of (rms of wanted + |wanted|); 0 for equal zeros."""
    errors, sizes = absolute_errors(output, wanted), _sizes(wanted)
    return np.divide(errors, sizes, out=np.where(errors > 0, math.inf, 0.0), where=sizes > 0)


def _agree(index: int, output: Array, wanted: Array, tolerance: float) -> Agreement:
    if output.shape != wanted.shape or output.dtype != wanted.dtype:
        shown = [f"{one.dtype}{list(one.shape)}" for one in (output, wanted)]
        problem = f"output {index} is {shown[0]}, expected {shown[1]}"
        return Agreement(max_abs_error=math.inf, allowed=0.0, problem=problem)
    if not output.size:
        return Agreement(max_abs_error=0.0, allowed=0.0, problem="")
    errors, allowed = absolute_errors(output, wanted), tolerance * _sizes(wanted)
    at = int(errors.argmax())
    wrong, problem = errors > allowed, ""
    if wrong.any():
        most = int(np.where(wrong, errors - allowed, -math.inf).argmax())
        place = tuple(map(int, np.unravel_index(most, wrong.shape)))
        problem = (
            f"output {index} differs in {int(wrong.sum())} of {errors.size} elements; worst at {place}: "
            f"{output.flat[most]!s} instead of {wanted.flat[most]!s} (off by {errors.flat[most]:.3g}, allowed "
            f"{allowed.flat[most]:.3g})"
        )
    return Agreement(max_abs_error=float(errors.flat[at]), allowed=float(allowed.flat[at]), problem=problem)


def absolute_errors(output: Array, wanted: Array) -> NDArray[np.float64]:
    """Return absolute differences: 0 where both are the same non-finite value, infinite where only one is finite."""
    left, right = output.astype(np.float64), wanted.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    return np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))


def _sizes(wanted: Array) -> NDArray[np.float64]:
    sizes = np.abs(wanted.astype(np.float64))
    finite = sizes[np.isfinite(sizes)]
    rms = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
    return np.where(np.isfinite(sizes), sizes, 0.0) + rms
