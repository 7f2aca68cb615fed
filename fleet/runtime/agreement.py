"""Whether an exported model gives the answers that were stored with it."""

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
    """What comparing all outputs found."""

    max_abs_error: float
    """Infinite where shapes differ, or only one side is finite."""

    problem: str
    """The first output that is wrong, in a sentence; empty: all are right."""

    @property
    def is_right(self) -> bool:
        """Every element of every output is within its tolerance."""
        return not self.problem


def agree(outputs: Sequence[Array], expected: Sequence[Array], tolerances: Sequence[float]) -> Agreement:
    """Compare outputs with those expected: |output - expected| <= tolerance * (rms of expected + |expected|)."""
    if len(outputs) != len(expected):
        return Agreement(max_abs_error=math.inf, problem=f"{len(outputs)} outputs where {len(expected)} were expected")
    largest, problem = 0.0, ""
    for index, (output, wanted, tolerance) in enumerate(zip(outputs, expected, tolerances, strict=True)):
        if output.shape != wanted.shape or output.dtype != wanted.dtype:
            largest = math.inf
            problem = problem or (
                f"output {index} is {output.dtype}{list(output.shape)}, expected {wanted.dtype}{list(wanted.shape)}"
            )
            continue
        errors = _errors(output, wanted)
        largest = max(largest, float(errors.max(initial=0.0)))
        wrong = int((errors > tolerance * _sizes(wanted)).sum())
        if wrong:
            problem = problem or (
                f"output {index} differs in {wrong} of {errors.size} elements, at most by {errors.max():.3g}"
            )
    return Agreement(max_abs_error=largest, problem=problem)


def worst(found: Sequence[Agreement]) -> Agreement:
    """Return what several comparisons say together: the largest error, and the first problem."""
    return Agreement(
        max_abs_error=max(agreement.max_abs_error for agreement in found),
        problem=next((agreement.problem for agreement in found if agreement.problem), ""),
    )


def _errors(output: Array, wanted: Array) -> NDArray[np.float64]:
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
