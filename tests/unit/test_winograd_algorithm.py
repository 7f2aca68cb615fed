"""Winograd's filtering is exact but for rounding, and its rounding stays within the usual tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from fleet.checking.numerics import compare
from fleet.graph.winograd_algorithm import OUTPUTS, TAPS, Filtering, growth

EVERY = pytest.mark.parametrize("outputs", OUTPUTS)
_SAFETY = 4.0
"""Factor of the tolerance in `fleet.checking.numerics`: between the typical loss and the largest."""


def filtered(outputs: int, data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Filter tiles [size, size, tiles, channels] with [3, 3, channels, filters]."""
    filtering = Filtering(outputs)
    by_columns = np.stack(filtering.data([*data]))
    transformed = np.stack(filtering.data([*by_columns.swapaxes(0, 1)]), axis=1)
    products = transformed @ filtering.weights(weights)
    back = np.stack(filtering.result([*products]))
    return np.stack(filtering.result([*back.swapaxes(0, 1)]), axis=1)


def summed(data: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the same sums by definition, in float64."""
    windows = sliding_window_view(data.astype("float64"), (TAPS, TAPS), (0, 1))
    return np.einsum("yxtcij,ijcf->yxtf", windows, weights.astype("float64"), optimize=True)


def case(outputs: int, channels: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(channels)
    size = Filtering(outputs).size
    data, weights = rng.standard_normal((size, size, 64, channels)), rng.standard_normal((TAPS, TAPS, channels, 16))
    return data.astype(dtype), weights.astype(dtype)


@EVERY
def test_it_filters(outputs: int) -> None:
    """The result equals the plain sum but for the rounding of float64."""
    data, weights = case(outputs, 8, "float64")

    np.testing.assert_allclose(filtered(outputs, data, weights), summed(data, weights), atol=1e-11)


@EVERY
@pytest.mark.parametrize("channels", [16, 256])
def test_its_rounding_is_allowed(outputs: int, channels: int) -> None:
    """The float32 result differs from the exact sum by less than another order of summing may."""
    data, weights = case(outputs, channels, "float32")
    exact = summed(data, weights).astype("float32")

    assert compare([filtered(outputs, data, weights)], [exact], reduction_size=TAPS**2 * channels) is None


@EVERY
def test_its_growth_is_covered(outputs: int) -> None:
    """The tolerance covers the growth of rounding for any number of channels.

    Rounding grows with the root of the channels, by `growth`; the tolerance grows with that of 9 terms for each
    channel. So the safety margin exceeds the growth, however many channels there are. The usual points of F(4, 3) would
    fail here: their growth is 31.
    """
    assert growth(outputs) < _SAFETY * TAPS


def test_growth_predicts_the_rounding_error() -> None:
    """F(4, 3) rounds several times as much as F(2, 3)."""
    errors = []
    for outputs in OUTPUTS:
        data, weights = case(outputs, 64, "float32")
        errors.append(float(np.std(filtered(outputs, data, weights) - summed(data, weights))))

    assert 1.5 < errors[1] / errors[0] < growth(4) / growth(2)
