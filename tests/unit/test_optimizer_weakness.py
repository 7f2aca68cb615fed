"""Weak output checks: outputs that any kernel would give."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet.checking.numerics import InputStyle, make_inputs
from fleet.checking.weakness import Weakness, find_weakness
from fleet.domain.measuring import TensorSpec

NOISE = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


@pytest.mark.parametrize(
    ("output", "weakness"),
    [
        (NOISE, None),
        (np.full((4, 8), 3.5, np.float32), Weakness.CONSTANT),
        (NOISE * np.float32(1e-28), Weakness.VANISHING),
        (np.zeros(8, np.float32), Weakness.VANISHING),
        (np.full(8, np.nan, np.float32), Weakness.NOT_FINITE),
        (np.arange(8, dtype=np.int32), None),
        (np.zeros(8, np.int32), Weakness.CONSTANT),
        (np.array([7.0], np.float32), None),
    ],
)
def test_an_uninformative_output_is_found(output: NDArray[np.generic], weakness: Weakness | None) -> None:
    """A randomly initialised MobileNetV2 gave 1e-28 everywhere, and every kernel agreed with that."""
    assert find_weakness([output]) is weakness


def test_one_informative_output_is_enough() -> None:
    """A model may well have a constant beside its answer."""
    assert find_weakness([np.zeros(8, np.float32), NOISE]) is None


def test_an_output_has_to_depend_on_the_input() -> None:
    """Biases alone make an answer that any kernel before them gives."""
    almost = NOISE * np.float32(1 + 1e-7)

    assert find_weakness([NOISE], [almost]) is Weakness.UNCHANGED
    assert find_weakness([NOISE], [NOISE + 1]) is None


def test_inputs_come_in_several_styles() -> None:
    """Roots need positive inputs; saturating functions need small ones."""
    args = (TensorSpec((64,), "float32"), TensorSpec((64,), "float32", is_output=True))

    inputs = {style: make_inputs(args, 0, style) for style in InputStyle}

    found = {style: given[0] for style, given in inputs.items()}
    assert all(given[1] == args[1] for given in inputs.values())
    assert all(isinstance(array, np.ndarray) and array.dtype == np.float32 for array in found.values())
    spans = {style: float(np.ptp(np.asarray(array))) for style, array in found.items()}
    assert spans[InputStyle.SMALL] < spans[InputStyle.POSITIVE] <= 1.0 < spans[InputStyle.NORMAL]
    assert spans[InputStyle.NORMAL] < spans[InputStyle.LARGE]
    assert float(np.min(np.asarray(found[InputStyle.POSITIVE]))) > 0
