"""Axes of a fragment's tensors: the ones of equal size are linked, so that a new size reaches all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from fleet.fragments.fragment import Attribute, Fragment

Axis: TypeAlias = tuple[str, int]
"""Name of a tensor and number of its axis: ("w0", 1)."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes by name: inputs, weights, results of calls, and items of results that are tuples ("c0.1")."""


class Relation(Protocol):
    """Sizes or attributes that follow from others at one call."""

    def backward(self, sizes: Sizes) -> None:
        """Set the sizes that the call reads, if a result's size is set."""

    def forward(self, sizes: Sizes) -> None:
        """Set the sizes that the call gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFragment:
    """A fragment with the links between its axes."""

    fragment: Fragment
    shapes: Shapes
    variable: frozenset[str]
    """Tensors that depend on an input of the fragment."""

    relations: list[Relation] = field(default_factory=list)
    """In the order of the calls."""

    _parents: dict[Axis, Axis] = field(default_factory=dict)

    def root(self, axis: Axis) -> Axis:
        """Return the axis that stands for all axes linked to this one."""
        while (parent := self._parents.get(axis)) is not None:
            axis = parent
        return axis

    def size(self, axis: Axis) -> int:
        """Return the present size of an axis."""
        return self.shapes[axis[0]][axis[1]]

    def join(self, one: Axis, other: Axis) -> None:
        """Link two axes. Does nothing if their sizes differ: the smaller one is broadcast."""
        first, second = self.root(one), self.root(other)
        if first != second and self.size(one) == self.size(other):
            self._parents[first] = second

    def join_all(self, one: str, axes: Sequence[int], other: str, others: Sequence[int]) -> None:
        """Link axes of two tensors pairwise."""
        for axis, same in zip(axes, others, strict=True):
            self.join((one, axis), (other, same))


class Sizes:
    """Sizes and attributes of a fragment after changes."""

    def __init__(self, linked: LinkedFragment) -> None:
        self.linked = linked
        self.attributes: dict[tuple[int, str], Attribute] = {}
        """Changed ones, by the number of the call and the name."""

        self._sizes: dict[Axis, int] = {}

    def __getitem__(self, axis: Axis) -> int:
        return self._sizes.get(self.linked.root(axis), self.linked.size(axis))

    def __setitem__(self, axis: Axis, size: int) -> None:
        self._sizes[self.linked.root(axis)] = size

    def is_set(self, axis: Axis) -> bool:
        """Tell whether an axis, or one linked to it, was set."""
        return self.linked.root(axis) in self._sizes

    def follow(self, axis: Axis, size: int) -> None:
        """Set an axis to the size that results. One that was set stays: TVM's inference judges it."""
        if not self.is_set(axis) and size != self.linked.size(axis):
            self[axis] = size

    def attribute(self, call: int, name: str) -> Attribute:
        """Return an attribute of a call."""
        return self.attributes.get((call, name), self.linked.fragment.calls[call].attributes.get(name))

    def spread(self) -> None:
        """Infer further sizes from those already set."""
        for relation in reversed(self.linked.relations):
            relation.backward(self)
        for relation in self.linked.relations:
            relation.forward(self)
