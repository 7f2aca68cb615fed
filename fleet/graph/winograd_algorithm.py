"""Winograd's minimal filtering F(m, 3): m outputs of a filter of 3 taps by m + 2 multiplications instead of 3 m.

Polynomials are multiplied by their values at m + 2 points: 0, infinity, and pairs +p and -p with shared even and odd
parts (A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016). In two dimensions each
transform is applied to columns, then to rows.

The points decide how rounding grows. With the usual 0, 1, -1, 2, -2 an error of F(4, 3) is ten times that of the sum as
it is written, with those here five times: see `growth`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np

from fleet.graph.constants import Array

TAPS = 3


class Linear(Protocol):
    """Operands of the transform: arrays of numbers, or expressions of a tensor program."""

    def __add__(self, other: Self, /) -> Self: ...

    def __sub__(self, other: Self, /) -> Self: ...

    def __rmul__(self, factor: float, /) -> Self: ...


Value = TypeVar("Value", bound=Linear)

_PAIRS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (11 / 16, 3 / 2)}
"""Positive points by the number of outputs. They have few digits, so that the data's transform has few, too."""

OUTPUTS = tuple(_PAIRS)


@dataclass(frozen=True, slots=True)
class Filtering:
    """Winograd's minimal filtering algorithm F(outputs, 3)."""

    outputs: int

    @property
    def size(self) -> int:
        """Inputs, and multiplications, of one dimension."""
        return self.outputs + TAPS - 1

    @property
    def pairs(self) -> tuple[float, ...]:
        return _PAIRS[self.outputs]

    def data(self, values: Sequence[Value]) -> list[Value]:
        """Return the transformed values of `size` neighbours."""
        all_pairs = _coefficients(self.pairs)
        found = [_dot(all_pairs, values[::2])]
        for point in self.pairs:
            others = _coefficients([other for other in self.pairs if other != point])
            even, odd = _dot(others, values[2::2]), point * _dot(others, values[1::2])
            found += [even + odd, even - odd]
        return [*found, _dot(all_pairs, values[1::2])]

    def result(self, products: Sequence[Value]) -> list[Value]:
        """Return the results from `size` products."""
        sums = [a + b for a, b in zip(products[1:-1:2], products[2:-1:2], strict=True)]
        apart = [a - b for a, b in zip(products[1:-1:2], products[2:-1:2], strict=True)]
        found = [
            _dot([point**power for point in self.pairs], apart if power % 2 else sums) for power in range(self.outputs)
        ]
        found[0] = found[0] + products[0]
        found[-1] = found[-1] + products[-1]
        return found

    def weights(self, weights: Array) -> Array:
        """Return kernels [3, 3, ...] transformed, [size, size, ...]. Computed in float64, once."""
        kernel = self._kernel_matrix()
        by_row = np.tensordot(kernel, weights.astype(np.float64), (1, 0))
        return np.moveaxis(np.tensordot(kernel, by_row, (1, 1)), 0, 1).astype(weights.dtype)

    def _kernel_matrix(self) -> Array:
        rows = [[1 / _coefficients(self.pairs)[0], 0, 0]]
        for point in self.pairs:
            apart = 2 * point**2 * math.prod(point**2 - other**2 for other in self.pairs if other != point)
            rows += [[1 / apart, sign * point / apart, point**2 / apart] for sign in (1, -1)]
        return np.array([*rows, [0, 0, 1]])


@functools.cache
def growth(outputs: int) -> float:
    """Return an upper bound on the growth of rounding errors over those of the direct sum.

    For independent data and weights, a product of transformed values has the variance of |B_p|^2 |G_p|^2 products in
    each dimension (rows of the matrices that transform data and kernels), a result adds A_ip^2 of each, and is itself
    as large as 3 products in each dimension.
    """
    filtering = Filtering(outputs)

    data = np.array(filtering.data(list(np.eye(filtering.size))))
    result = np.array(filtering.result(list(np.eye(filtering.size))))
    kernel = filtering._kernel_matrix()  # noqa: SLF001 - of this module
    return float(np.max(result**2 @ ((data**2).sum(axis=1) * (kernel**2).sum(axis=1))) / TAPS)


def _coefficients(points: Sequence[float]) -> list[float]:
    """Return the coefficients of the product of (y - p^2) over all points, the constant first."""
    found = np.array([1.0])
    for point in points:
        found = np.convolve(found, [-(point**2), 1.0])
    return [float(value) for value in found]


def _dot(factors: Sequence[float], values: Sequence[Value]) -> Value:
    """Return the weighted sum of the values."""
    first, *rest = [value if factor == 1.0 else factor * value for factor, value in zip(factors, values, strict=False)]
    for term in rest:
        first = first + term
    return first
