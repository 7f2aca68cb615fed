"""Gives the dimensions of a fragment new sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

from fleet.errors import InvalidRequest
from fleet.fragments.axes import LinkedFragment, Sizes
from fleet.fragments.dimensions import DTYPE, Dimension, Setting, dtype_of, size_at
from fleet.fragments.fragment import Attribute, Call, Fragment, Operand, Shape, Tensor

MOST_CONSTANTS = 2**26
"""Elements of all weights and constants together: lowering transforms and folds them."""

_SHAPED = frozenset({"broadcast_to", "full", "ones", "reshape", "zeros"})
"""Operators with the shape of their result as an operand."""


def mutated(linked: LinkedFragment, dimensions: Mapping[str, Dimension], values: Mapping[str, int | str]) -> Fragment:
    """Return a fragment with new sizes, also of all axes that are linked to the named ones.

    Args:
        values: new sizes by name, and the new type as `dtype`.

    Raises:
        InvalidRequest: two dimensions are linked, a size that follows is below 1, constants are too large, the groups
            of a convolution do not divide its channels, or a constant's values do not fit.
    """
    sizes = Sizes(linked)
    wanted = {name: value for name, value in values.items() if isinstance(value, int)}
    for name, value in wanted.items():
        if value != dimensions[name].size:
            _put(sizes, dimensions[name], value)
    sizes.spread()
    for name, value in wanted.items():
        if (found := size_at(sizes, dimensions[name].places[0])) != value:
            raise InvalidRequest(f"{name} would be {found} instead of {value}: it is linked to another dimension")
    _check(sizes)
    dtype = str(values.get(DTYPE, dtype_of(linked)))
    fragment = linked.fragment
    return Fragment(
        inputs=tuple(_tensor(sizes, f"i{n}", one, dtype) for n, one in enumerate(fragment.inputs)),
        weights=tuple(_tensor(sizes, f"w{n}", one, dtype) for n, one in enumerate(fragment.weights)),
        calls=tuple(_call(sizes, n, call) for n, call in enumerate(fragment.calls)),
    )


def _check(sizes: Sizes) -> None:
    """Refuse sizes below 1, and constants that lowering would compute in too much memory."""
    shapes = {name: [sizes[name, axis] for axis in range(len(shape))] for name, shape in sizes.linked.shapes.items()}
    if (least := min(itertools.chain([1], *shapes.values()))) < 1:
        raise InvalidRequest(f"the size of an axis would be {least}")
    constants = [shape for name, shape in shapes.items() if name not in sizes.linked.variable]
    if (count := sum(map(math.prod, constants))) > MOST_CONSTANTS:
        raise InvalidRequest(f"weights and constants would have {count} elements; at most {MOST_CONSTANTS} are lowered")


def _put(sizes: Sizes, dimension: Dimension, value: int) -> None:
    for place in dimension.places:
        if isinstance(place, Setting):
            present = sizes.attribute(place.call, place.attribute)
            sizes.attributes[place.call, place.attribute] = _changed(present, place.index, value)
        else:
            sizes[place] = value


def _changed(present: Attribute, index: int | None, value: int) -> Attribute:
    if not isinstance(present, tuple):
        return value
    return tuple(value if index in (None, n) else one for n, one in enumerate(present))


def _tensor(sizes: Sizes, name: str, tensor: Tensor, dtype: str) -> Tensor:
    shape = tuple(sizes[name, axis] for axis in range(len(tensor.shape)))
    if len(tensor.values) > 1 and math.prod(shape) != len(tensor.values):
        raise InvalidRequest(f"a constant of {len(tensor.values)} values would need another number of them")
    is_changed = tensor.dtype == dtype_of(sizes.linked)
    return replace(tensor, shape=shape, dtype=dtype if is_changed else tensor.dtype)


def _call(sizes: Sizes, number: int, call: Call) -> Call:
    changed = {name: value for (at, name), value in sizes.attributes.items() if at == number}
    operands = call.operands
    if call.operator in _SHAPED:
        operands = tuple(_operand(sizes, f"c{number}", operand) for operand in operands)
    return replace(call, operands=operands, attributes={**call.attributes, **changed})


def _operand(sizes: Sizes, result: str, operand: Operand) -> Operand:
    if not isinstance(operand, Shape) or len(operand.shape) != len(sizes.linked.shapes.get(result, ())):
        return operand
    shown = enumerate(operand.shape)
    return Shape(shape=tuple(one if one < 1 else sizes[result, axis] for axis, one in shown))
