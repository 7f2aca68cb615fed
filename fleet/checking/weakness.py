"""Detects outputs that do not test a program, because almost any program would produce them.

Outputs that are constant, vanish, or ignore the input agree with those of a wrong kernel, too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_TINY = 1e-12
"""No real output is this small: the signal faded out layer by layer, and hides mistakes made after that."""

_FLAT = 1e-6
"""Largest spread of a constant, as a share of its size; rounding alone causes less."""

_CHANGE = 1e-5
"""Smallest change that counts, as a share of the outputs' size: a smaller one hides within the tolerance."""


class Weakness(enum.Enum):
    """Why two outputs that agree prove little."""

    CONSTANT = "constant"
    VANISHING = "vanishing"
    NOT_FINITE = "not finite"
    UNCHANGED = "unchanged"

    @property
    def text(self) -> str:
        """The reason in words, to follow "not checked"."""
        return _TEXTS[self]


_TEXTS = {
    Weakness.CONSTANT: "all elements of the output are the same",
    Weakness.VANISHING: "the output vanishes",
    Weakness.NOT_FINITE: "the output holds no finite number",
    Weakness.UNCHANGED: "the output does not depend on the input",
}


def find_weakness(
    outputs: Sequence[NDArray[np.generic]], others: Sequence[NDArray[np.generic]] | None = None
) -> Weakness | None:
    """Return why agreeing with these outputs would prove little, or None if it proves enough.

    Args:
        others: the same program's outputs for different inputs.
    """
    found = [_weakness_of(output) for output in outputs if output.size]
    if not found or None not in found:
        return next(iter(found), None)
    if others is not None and not any(map(_has_changed, outputs, others)):
        return Weakness.UNCHANGED
    return None


def _weakness_of(output: NDArray[np.generic]) -> Weakness | None:
    numbers = output.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return Weakness.NOT_FINITE
    if np.max(np.abs(finite)) < _TINY and output.dtype.kind not in "biu":
        return Weakness.VANISHING
    # A single number may be the whole answer; then only a different input can show whether it depends on the input.
    return Weakness.CONSTANT if finite.size > 1 and np.ptp(finite) <= _FLAT * np.max(np.abs(finite)) else None


def _has_changed(output: NDArray[np.generic], other: NDArray[np.generic]) -> bool:
    numbers, others = output.astype(np.float64), other.astype(np.float64)
    if numbers.shape != others.shape:
        return True
    both = np.isfinite(numbers) & np.isfinite(others)
    if not both.any():
        return False
    scale = max(float(np.max(np.abs(numbers[both]))), float(np.max(np.abs(others[both]))))
    return float(np.max(np.abs(numbers[both] - others[both]))) > _CHANGE * scale
