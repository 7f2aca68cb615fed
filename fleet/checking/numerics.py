"""Verification of outputs: seeded inputs, and a comparison with derived tolerances.

A schedule may sum in another order, fuse a multiplication with an addition, or keep more digits in between. Two right
answers therefore differ by rounding, within a known bound. In a sum of n terms, each step loses up to eps/2 of the
partial sum. With random signs the losses add up to about sqrt(n) * eps of the result's size, at worst to n * eps. The
bound is

    |output - reference|  <=  eps * (FACTOR + n ** 0.5) * SAFETY * (scale + |reference|)

with `scale` the root mean square of the reference. It is needed because an element close to zero after cancellation has
the rounding error of its large terms. A wrong kernel (elements swapped, a tile left out, a sum cut short) is off by
about `scale` itself: in float32 that is ten thousand times the bound. Right ones stay far below it: see
tests/unit/test_numerics_compare.py.

For a whole model, n is the total length of its sums, since each one rounds the input of the next. VGG-19 has 48,000
terms. Cancellation of large terms loses more than that. Models are therefore allowed a multiple of their engine's error
against float64, if it can be computed (`fleet.checking.spread`), and at least the bound above.

Convolutions by Winograd's algorithm have larger rounding errors per term, but stay within the same bound: `growth` in
fleet.graph.winograd_algorithm is the factor, and a test proves that SAFETY covers it.

Integers have to be equal. NaN has to match NaN, and infinity the same infinity.

Quantized models round to 8-bit codes repeatedly. Two right programs may round a number midway between two codes
differently, and the difference propagates. In the end two right answers differ like two models that round
independently. Normal numbers reach 4.5 times their root mean square, so 256 codes over the whole range have a distance
of about 9/256 of it. A rounding loses 1/sqrt(12) of that distance, n roundings lose sqrt(n) times as much, and two
answers differ by sqrt(2) times that. So n roundings add

    9/256 / sqrt(12) * sqrt(2 * n) * SAFETY

to the bound, up to 0.5, beyond which the test would be meaningless. A ResNet-18 with 30 roundings is allowed 0.31 and
is off by 0.06; wrong results are off by about 1. In a single program codes may differ by one, and only in the share of
elements that lie this close to the middle: with values up to 2^8 codes and FACTOR losses of 2^-24, one in 2^11.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.client.arrays import numpy_dtype
from fleet.domain.measuring import TensorSpec
from fleet.runtime.agreement import absolute_errors

_EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_FACTOR = 16.0
"""Rounding besides the sum's: exponentials and divisions in activations are good to a few units in the last place."""

_SAFETY = 4.0
"""Factor between the typical loss and the largest one among an output's elements."""

_DEFAULT_REDUCTION = 4096
"""Assumed length of sums if the caller does not say: that of a 3x3 convolution over 455 channels."""

_LOST_BY_ROUNDING = 9 / 256 / math.sqrt(12) * math.sqrt(2) * _SAFETY
_MOST_LOST_BY_ROUNDING = 0.5
_CLOSE_TO_MIDDLE = 2.0**-11 * _SAFETY
_FEW = 4
"""Number of elements near the middle between two codes that every output may have, however small it is."""

_SPREAD_FACTOR = 8.0
"""Factor from the reference's largest error against float64 to the largest difference of two right answers. Both
answers have errors, in either direction, and few elements reveal little of the tail."""

_MOST_SPREAD = 2.0**-9
"""Upper bound of that tolerance: still detects a wrong rounding to bfloat16, or an error of 1 % in one element."""

_CODES = ("int8", "uint8")
_INTEGER_BOUND = 8
_INDEX_BYTES = 4
LARGEST_INDICES = (_INTEGER_BOUND, 1, 0)
"""Largest indices to try: some lookup tables of models are short. BERT's has one row for each of two kinds of
tokens.
"""
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Place of a wrong answer."""

    index: int
    """Index of the output."""

    max_abs_error: float
    """Largest difference in that output; infinite where only one side is finite."""

    tolerance: float
    """Tolerance at that element."""

    text: str
    """The mismatch in a sentence."""


class InputStyle(enum.Enum):
    """Distribution of floats. Tried in this order until the outputs are informative (`fleet.checking.weakness`)."""

    NORMAL = "normal"
    """Variance 1, so that no element and no sign is special."""

    POSITIVE = "positive"
    """Uniform between 0.5 and 1.5: for programs that take roots and logarithms."""

    LARGE = "large"
    SMALL = "small"


def make_inputs(
    args: Sequence[TensorSpec],
    seed: int,
    style: InputStyle = InputStyle.NORMAL,
    *,
    largest_index: int = LARGEST_INDICES[0],
    scales: Sequence[tuple[int, float]] = (),
) -> list[Array | TensorSpec]:
    """Return an array for each input, and the spec of each output, which the device allocates.

    Integers lie in [-8, 8], so that sums of products stay within 32 bits. Integers of 32 and 64 bits lie in
    [0, largest_index], since most are indices, and PyTorch has no negative ones. Booleans are fair coins.

    Args:
        scales: factors by index of the argument, for floats that need another scale.
    """
    rng, factors = np.random.default_rng(seed), dict(scales)
    return [
        spec if spec.is_output else _scaled(_random(rng, spec, style, largest_index), factors.get(place, 1.0))
        for place, spec in enumerate(args)
    ]


def is_index(spec: TensorSpec) -> bool:
    """Tell whether a tensor has integers of 32 or 64 bits, which inputs mostly use as indices."""
    return "int" in spec.dtype and numpy_dtype(spec.dtype).itemsize >= _INDEX_BYTES


def compare(
    outputs: Sequence[Array],
    reference: Sequence[Array],
    *,
    reduction_size: int | None = None,
    roundings: int = 0,
    are_codes: bool = False,
) -> Mismatch | None:
    """Compare outputs with the reference; return the first mismatch, or None if all agree.

    Args:
        reduction_size: terms in the longest sum behind an element.
        roundings: of a whole model, see `Model.roundings`.
        are_codes: outputs of 8 bits were rounded from floats, so that a few of them may be off by one.
    """
    if len(outputs) != len(reference):
        text = f"{len(outputs)} outputs where the reference has {len(reference)}"
        return Mismatch(index=min(len(outputs), len(reference)), max_abs_error=math.inf, tolerance=0.0, text=text)
    terms = reduction_size if reduction_size is not None else _DEFAULT_REDUCTION
    found = (
        _compare_one(index, np.asarray(output), np.asarray(expected), terms, roundings, are_codes=are_codes)
        for index, (output, expected) in enumerate(zip(outputs, reference, strict=True))
    )
    return next((mismatch for mismatch in found if mismatch is not None), None)


def tolerance_of(dtype: str, *, reduction_size: int | None = None, roundings: int = 0) -> float:
    """Return the limit of an error as a share of (scale + |reference|); 0 for types that have to be equal.

    Args:
        reduction_size: terms in the longest sum behind an element.
        roundings: of a whole model, see `Model.roundings`.
    """
    terms = reduction_size if reduction_size is not None else _DEFAULT_REDUCTION
    in_float = _EPSILONS.get(dtype, 0.0) * (_FACTOR + math.sqrt(terms)) * _SAFETY
    by_rounding = min(_LOST_BY_ROUNDING * math.sqrt(roundings), _MOST_LOST_BY_ROUNDING)
    return in_float + (by_rounding if dtype in _CODES or dtype in _EPSILONS else 0.0)


def answer_tolerances(
    outputs: Sequence[Array], *, terms: int, roundings: int, spread: Sequence[float] | None
) -> tuple[float, ...]:
    """Return the tolerance of each output of a model, in the unit of `fleet.runtime.agreement.agree`.

    Args:
        outputs: outputs of the reference.
        terms: number of terms in all sums of the model.
        roundings: see `Model.roundings`.
        spread: error of the reference against float64 for each output, in the same unit; None if it is unknown.
    """
    errors = spread if spread is not None else [0.0] * len(outputs)
    return tuple(
        max(
            tolerance_of(output.dtype.name, reduction_size=terms, roundings=roundings),
            min(error * _SPREAD_FACTOR, _MOST_SPREAD) if output.dtype == np.float32 else 0.0,
        )
        for output, error in zip(outputs, errors, strict=True)
    )


_SCALES = {InputStyle.LARGE: 30.0, InputStyle.SMALL: 0.03}


def _scaled(array: Array, factor: float) -> Array:
    return array if factor == 1.0 else (array * factor).astype(array.dtype)


def _random(rng: np.random.Generator, spec: TensorSpec, style: InputStyle, largest_index: int) -> Array:
    if spec.dtype == "bool":
        return rng.integers(0, 2, spec.shape).astype(np.bool_)
    dtype = numpy_dtype(spec.dtype)
    if "float" in spec.dtype:
        if style is InputStyle.POSITIVE:
            return np.asarray(rng.uniform(0.5, 1.5, spec.shape)).astype(dtype)
        return np.asarray(rng.standard_normal(spec.shape) * _SCALES.get(style, 1.0)).astype(dtype)
    if is_index(spec):
        return rng.integers(0, largest_index + 1, spec.shape).astype(dtype)
    return rng.integers(0 if dtype.kind == "u" else -_INTEGER_BOUND, _INTEGER_BOUND + 1, spec.shape).astype(dtype)


def _compare_one(
    index: int, output: Array, expected: Array, terms: int, roundings: int, *, are_codes: bool
) -> Mismatch | None:
    if output.shape != expected.shape or output.dtype != expected.dtype:
        text = f"output {index} is {output.dtype}{output.shape}, the reference {expected.dtype}{expected.shape}"
        return Mismatch(index=index, max_abs_error=math.inf, tolerance=0.0, text=text)
    differences = absolute_errors(output, expected)
    allowed = _tolerances(expected, terms, roundings)
    if are_codes and str(expected.dtype) in _CODES:
        is_few = int(np.count_nonzero(differences)) <= _FEW + _CLOSE_TO_MIDDLE * expected.size
        allowed = np.full(expected.shape, float(is_few))
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


def _tolerances(expected: Array, terms: int, roundings: int) -> NDArray[np.float64]:
    """Return the tolerance of each element."""
    magnitude = np.abs(expected.astype(np.float64))
    finite = magnitude[np.isfinite(magnitude)]
    scale = math.sqrt(float(np.mean(finite**2))) if finite.size else 0.0
    magnitude = np.where(np.isfinite(magnitude), magnitude, 0.0)
    return tolerance_of(str(expected.dtype), reduction_size=terms, roundings=roundings) * (scale + magnitude)
