"""Sizes that follow from others: windows of convolutions and pools, groups of channels, and reshapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.errors import InvalidRequest
from fleet.fragments.axes import Axis, Sizes
from fleet.fragments.fragment import Attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The size of a convolution's or pool's result along one axis. Padding that keeps the size follows the kernel."""

    call: int
    source: Axis
    result: Axis
    kernel: Axis | None
    """Axis of the weight; None: the attribute `pool_size`."""

    dimension: int
    dimensions: int

    def backward(self, sizes: Sizes) -> None:
        """Set the source, with as many unused columns at its end as today."""
        if not sizes.is_set(self.result) or sizes.is_set(self.source):
            return
        present = Sizes(sizes.linked)
        unused = present[self.source] - self._needed(present)
        step = self._number(sizes, "strides")
        sizes.follow(self.source, self._needed(sizes) + min(unused, step - 1))

    def forward(self, sizes: Sizes) -> None:
        """Set the padding and the result."""
        padding = self._padding(sizes)
        if padding != self._pads(sizes):
            pads = list(numbers(sizes.attribute(self.call, "padding")))
            pads[self.dimension], pads[self.dimension + self.dimensions] = padding
            sizes.attributes[self.call, "padding"] = tuple(pads)
        present = Sizes(sizes.linked)
        if self._made(present) == present[self.result]:
            sizes.follow(self.result, self._made(sizes))

    def _made(self, sizes: Sizes) -> int:
        rest, step = sizes[self.source] - self._extent(sizes), self._number(sizes, "strides")
        return (-(-rest // step) if sizes.attribute(self.call, "ceil_mode") else rest // step) + 1

    def _needed(self, sizes: Sizes) -> int:
        return (sizes[self.result] - 1) * self._number(sizes, "strides") + self._extent(sizes)

    def _extent(self, sizes: Sizes) -> int:
        """Return the columns of the source under the first window."""
        return self._reach(sizes) + 1 - sum(self._padding(sizes))

    def _reach(self, sizes: Sizes) -> int:
        kernel = sizes[self.kernel] if self.kernel is not None else self._number(sizes, "pool_size")
        return (kernel - 1) * self._number(sizes, "dilation")

    def _padding(self, sizes: Sizes) -> tuple[int, int]:
        before, after = self._pads(sizes)
        present, reach = self._reach(Sizes(sizes.linked)), self._reach(sizes)
        if before + after != present or reach == present:
            return before, after
        smaller, larger = reach // 2, reach - reach // 2
        return (larger, smaller) if before > after else (smaller, larger)

    def _pads(self, sizes: Sizes) -> tuple[int, int]:
        pads = numbers(sizes.linked.fragment.calls[self.call].attributes.get("padding"))
        return pads[self.dimension], pads[self.dimension + self.dimensions]

    def _number(self, sizes: Sizes, name: str) -> int:
        return numbers(sizes.attribute(self.call, name))[self.dimension]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Channels of a convolution in groups. A depthwise one keeps one group per channel."""

    call: int
    source: Axis
    result: Axis
    columns: Axis
    """Channels of one group, an axis of the weight."""

    def backward(self, sizes: Sizes) -> None:
        """Set the channels of a depthwise convolution, if only those of its result are set."""
        if self._is_depthwise(sizes) and sizes.is_set(self.result) and not sizes.is_set(self.source):
            sizes.follow(self.source, sizes[self.result] // self._multiple(sizes))

    def forward(self, sizes: Sizes) -> None:
        """Set the number of groups, the channels of one, and the result of a depthwise convolution.

        Raises:
            InvalidRequest: the groups do not divide the channels.
        """
        channels = sizes[self.source]
        if self._is_depthwise(sizes):
            if channels != sizes.linked.size(self.source):
                sizes.attributes[self.call, "groups"] = channels
            sizes.follow(self.result, channels * self._multiple(sizes))
        (groups,) = numbers(sizes.attribute(self.call, "groups"))
        if channels % groups or sizes[self.result] % groups:
            raise InvalidRequest(f"{groups} groups do not divide {channels} and {sizes[self.result]} channels")
        sizes.follow(self.columns, channels // groups)

    def _is_depthwise(self, sizes: Sizes) -> bool:
        groups = sizes.linked.fragment.calls[self.call].attributes["groups"]
        is_named = (self.call, "groups") in sizes.attributes
        return not is_named and groups != 1 and groups == sizes.linked.size(self.source)

    def _multiple(self, sizes: Sizes) -> int:
        return sizes.linked.size(self.result) // sizes.linked.size(self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaped:
    """Axes that a reshape splits or joins. The first one of more than one element takes the change."""

    sources: tuple[Axis, ...]
    results: tuple[Axis, ...]

    def backward(self, sizes: Sizes) -> None:
        """Set the sources."""
        if any(map(sizes.is_set, self.results)) and not any(map(sizes.is_set, self.sources)):
            _fill(sizes, self.sources, self.results)

    def forward(self, sizes: Sizes) -> None:
        """Set the results."""
        _fill(sizes, self.results, self.sources)


def numbers(value: Attribute) -> tuple[int, ...]:
    """Return an attribute of whole numbers as a tuple."""
    values = value if isinstance(value, tuple) else (value,)
    return tuple(one for one in values if isinstance(one, int))


def regroup(shape: Sequence[int], other: Sequence[int]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the axes of two shapes in the smallest groups of equal products, pairwise and in order."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    left = right = 0
    while left < len(shape) and right < len(other):
        start, begin = left, right
        left, right = left + 1, right + 1
        while (one := math.prod(shape[start:left])) != (same := math.prod(other[begin:right])):
            if one < same and left < len(shape):
                left += 1
            elif same < one and right < len(other):
                right += 1
            else:
                return []
        found.append((tuple(range(start, left)), tuple(range(begin, right))))
    return found


def _fill(sizes: Sizes, axes: Sequence[Axis], others: Sequence[Axis]) -> None:
    total = math.prod(sizes[axis] for axis in others)
    size: Callable[[Axis], int] = sizes.linked.size
    taker = next((axis for axis in axes if size(axis) > 1), axes[0])
    rest = math.prod(sizes[axis] for axis in axes if axis != taker)
    if rest and total % rest == 0:
        sizes.follow(taker, total // rest)
