"""Tells a right answer from a wrong one: seeded inputs, and a comparison whose tolerance is derived, not guessed.

A schedule may sum in another order, fuse a multiplication with an addition, or keep more digits in between. So two
right answers differ by rounding, but by a known amount: adding n terms one by one, each step loses up to eps/2 of the
sum so far, and with random signs these losses add up to about sqrt(n) * eps of the result's size (at worst n * eps).
The bound used is

    |output - reference|  <=  eps * (FACTOR + n ** 0.5) * SAFETY * (scale + |reference|)

with `scale` the root mean square of the reference, since an element that cancelled to nearly zero carries the rounding
of its large terms. A wrong kernel (elements swapped, a tile left out, a sum cut short) is off by about `scale` itself:
in float32 that is ten thousand times the bound. Right ones stay far below it: see tests/unit/test_numerics_compare.py.

Integers have to be equal. NaN has to meet NaN, infinity the same infinity.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.domain.measuring import TensorSpec

_EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_FACTOR = 16.0
"""Rounding besides the sum's: exponentials and divisions in activations are good to a few units in the last place."""

_SAFETY = 4.0
"""Factor between the typical loss and the largest one among an output's elements."""

_DEFAULT_REDUCTION = 4096
"""Assumed length of sums if the caller does not say: that of a 3x3 convolution over 455 channels."""

_INTEGER_BOUND = 8
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Where an answer is wrong."""

    index: int
    """Which output."""

    max_abs_error: float
    """Largest difference in that output; infinite where only one side is finite."""

    tolerance: float
    """What was allowed at that element."""

    text: str
    """The mismatch in a sentence."""


class InputStyle(enum.Enum):
    """How floats are drawn. Tried in this order until the outputs say something (`fleet.optimizer.weakness`)."""

    NORMAL = "normal"
    """Variance 1, so that no element and no sign is special."""

    POSITIVE = "positive"
    """Between 0.5 and 1.5: for programs that take roots and logarithms."""

    LARGE = "large"
    SMALL = "small"


def make_inputs(
    args: Sequence[TensorSpec], seed: int, style: InputStyle = InputStyle.NORMAL
) -> list[Array | TensorSpec]:
    """Return an array for each input, and for each output its spec, which the device allocates.

    Integers lie in [-8, 8], so that sums of products stay within 32 bits; booleans are fair coins.
    """
    rng = np.random.default_rng(seed)
    return [spec if spec.is_output else _random(rng, spec, style) for spec in args]


def compare(
    outputs: Sequence[Array], reference: Sequence[Array], *, reduction_size: int | None = None
) -> Mismatch | None:
    """Compare outputs with the reference; return the first that is wrong, or None if all agree.

    Args:
        reduction_size: terms in the longest sum behind an element.
    """
    if len(outputs) != len(reference):
        text = f"{len(outputs)} outputs where the reference has {len(reference)}"
        return Mismatch(index=min(len(outputs), len(reference)), max_abs_error=math.inf, tolerance=0.0, text=text)
    terms = reduction_size if reduction_size is not None else _DEFAULT_REDUCTION
    found = (
        _compare_one(index, np.asarray(output), np.asarray(expected), terms)
        for index, (output, expected) in enumerate(zip(outputs, reference, strict=True))
    )
    return next((mismatch for mismatch in found if mismatch is not None), None)


def tolerance_of(dtype: str, *, reduction_size: int | None = None) -> float:
    """Return what an error may be at most, as a share of (scale + |reference|); 0 for types that have to be equal.

    Args:
        reduction_size: terms in the longest sum behind an element.
    """
    terms = reduction_size if reduction_size is not None else _DEFAULT_REDUCTION
    return _EPSILONS.get(dtype, 0.0) * (_FACTOR + math.sqrt(terms)) * _SAFETY


def max_abs_error(outputs: Sequence[Array], reference: Sequence[Array]) -> float:
    """Return the largest difference between two answers of equal shapes."""
    return max(
        (
            float(_differences(np.asarray(a), np.asarray(b)).max(initial=0.0))
            for a, b in zip(outputs, reference, strict=True)
        ),
        default=0.0,
    )


_SCALES = {InputStyle.LARGE: 30.0, InputStyle.SMALL: 0.03}


def _random(rng: np.random.Generator, spec: TensorSpec, style: InputStyle) -> Array:
    if spec.dtype == "bool":
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        if style is InputStyle.POSITIVE:
            return np.asarray(rng.uniform(0.5, 1.5, spec.shape)).astype(dtype)
        return np.asarray(rng.standard_normal(spec.shape) * _SCALES.get(style, 1.0)).astype(dtype)
    low = 0 if dtype.kind == "u" else -_INTEGER_BOUND
    return rng.integers(low, _INTEGER_BOUND + 1, spec.shape).astype(dtype)


def _compare_one(index: int, output: Array, expected: Array, terms: int) -> Mismatch | None:
    if output.shape != expected.shape or output.dtype != expected.dtype:
        text = f"output {index} is {output.dtype}{output.shape}, the reference {expected.dtype}{expected.shape}"
        return Mismatch(index=index, max_abs_error=math.inf, tolerance=0.0, text=text)
    differences = _differences(output, expected)
    allowed = _tolerances(expected, terms)
    wrong = differences > allowed
    if not wrong.any():
        return None
    worst = int(np.argmax(np.where(wrong, differences - allowed, -math.inf)))
    error, tolerance = float(differences.flat[worst]), float(allowed.flat[worst])
    text = (
        f"output {index} differs in {int(wrong.sum())} of {wrong.size} elements; worst at "
        f"{tuple(map(int, np.unravel_index(worst, wrong.shape)))}: {output.flat[worst]!s} instead of "
        f"{expected.flat[worst]!s} (off by {error:.3g}, allowed {tolerance:.3g})"
    )
    return Mismatch(index=index, max_abs_error=error, tolerance=tolerance, text=text)


def _differences(output: Array, expected: Array) -> NDArray[np.float64]:
    """Return absolute differences: 0 where both are the same non-finite value, infinite where only one is finite."""
    left, right = output.astype(np.float64), expected.astype(np.float64)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    return np.where(same, 0.0, np.where(np.isnan(apart), math.inf, apart))


def _tolerances(expected: Array, terms: int) -> NDArray[np.float64]:
    """Return how far each element may be off."""
    magnitude = np.abs(expected.astype(np.float64))
    finite = magnitude[np.isfinite(magnitude)]
    scale = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
    magnitude = np.where(np.isfinite(magnitude), magnitude, 0.0)
    return tolerance_of(str(expected.dtype), reduction_size=terms) * (scale + magnitude)
