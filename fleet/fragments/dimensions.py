"""Names of a fragment's dimensions: N, C, H, W, O, KH, KW, stride, groups; M, K, N; heads, S, D; and dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fleet.fragments.axes import Axis, LinkedFragment, Sizes
from fleet.fragments.links import results_of, tensors
from fleet.fragments.operators import ANCHORS, CONVOLUTIONS, POOLS, SOFTMAX
from fleet.fragments.relations import numbers

DTYPE = "dtype"
NAMES = (*"NCHWO", "KH", "KW", "stride", "groups", *"MK", "heads", *"SD", DTYPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """An attribute of a call as a dimension."""

    call: int
    attribute: str
    index: int | None = None
    """Its item; None: all of them."""


Place: TypeAlias = "Axis | Setting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A named size of a fragment's costliest operator."""

    size: int
    places: tuple[Place, ...]
    """All of them take a new size."""


def anchor_of(linked: LinkedFragment) -> int:
    """Return the number of the costliest call, the last of equal ones."""
    found = [number for number, call in enumerate(linked.fragment.calls) if call.operator in ANCHORS]
    return max(found or range(len(linked.fragment.calls)), key=lambda number: (_cost(linked, number), number))


def dtype_of(linked: LinkedFragment) -> str:
    """Return the type of the first input, or the first weight."""
    return next((one.dtype for one in (*linked.fragment.inputs, *linked.fragment.weights)), "")


def size_at(sizes: Sizes, place: Place) -> int:
    """Return the size that a place has."""
    if not isinstance(place, Setting):
        return sizes[place]
    return numbers(sizes.attribute(place.call, place.attribute))[place.index or 0]


def dimensions_of(linked: LinkedFragment) -> dict[str, Dimension]:
    """Return the dimensions of a fragment by name; `dtype` has no size and is not among them."""
    places = _places(linked)
    return {name: Dimension(size=_size(linked, found[0]), places=tuple(found)) for name, found in places.items()}


def _places(linked: LinkedFragment) -> dict[str, list[Place]]:
    number = anchor_of(linked)
    operator = linked.fragment.calls[number].operator
    names = tensors(linked.fragment.calls[number].operands)
    results = results_of(number, linked.shapes)
    if not names or not results or not linked.shapes[names[0]]:
        return {}
    if operator in CONVOLUTIONS:
        return _convolution(linked, number, names)
    if operator in POOLS:
        return _pool(linked, number, names[0])
    if operator in ("nn.attention", "nn.attention_bias"):
        return _attention_operator(linked, *names[:3])
    if operator == "matmul":
        return _products(linked, number, names, results[0])
    shape = linked.shapes[names[0]]
    return {name: [(names[0], axis)] for name, axis in zip("NM", range(len(shape) - 1, -1, -1), strict=False)}


def _convolution(linked: LinkedFragment, number: int, names: Sequence[str]) -> dict[str, list[Place]]:
    data, weight = names[:2]
    attributes = linked.fragment.calls[number].attributes
    layout, kernel = str(attributes["data_layout"]), str(attributes["kernel_layout"])
    found: dict[str, list[Place]] = {letter: [(data, layout.find(letter))] for letter in "NCHW" if letter in layout}
    found |= {f"K{letter}": [(weight, kernel.find(letter))] for letter in "HW" if letter in kernel}
    found["O"] = [(weight, kernel.find("O"))]
    return found | {
        "stride": [Setting(call=number, attribute="strides")],
        "groups": [Setting(call=number, attribute="groups")],
    }


def _pool(linked: LinkedFragment, number: int, data: str) -> dict[str, list[Place]]:
    attributes = linked.fragment.calls[number].attributes
    layout = str(attributes["layout"])
    spatial = [letter for letter in layout if letter in "DHW"]
    found: dict[str, list[Place]] = {letter: [(data, layout.find(letter))] for letter in "NCHW" if letter in layout}
    if "pool_size" not in attributes:
        return found
    kernels = {f"K{letter}": n for n, letter in enumerate(spatial) if letter != "D"}
    found |= {name: [Setting(call=number, attribute="pool_size", index=n)] for name, n in kernels.items()}
    return found | {"stride": [Setting(call=number, attribute="strides")]}


def _products(linked: LinkedFragment, number: int, names: Sequence[str], result: str) -> dict[str, list[Place]]:
    if attention := _attention_of(linked):
        return attention
    left, right = (len(linked.shapes[name]) for name in names[:2])
    if left < 2 or right < 2:
        return {}
    rank = len(linked.shapes[result])
    return {"M": [(result, rank - 2)], "K": [(names[0], left - 1)], "N": [(result, rank - 1)]}


def _attention_of(linked: LinkedFragment) -> dict[str, list[Place]]:
    """Return the dimensions of an attention of two products with a softmax between them; empty for others."""
    operators = [call.operator for call in linked.fragment.calls]
    products = [number for number, operator in enumerate(operators) if operator == "matmul"]
    if len(products) != 2 or SOFTMAX.isdisjoint(operators[products[0] : products[1]]):
        return {}
    query, key = tensors(linked.fragment.calls[products[0]].operands)
    rank = len(linked.shapes[query])
    if rank != len(linked.shapes[key]) or rank < 3:
        return {}
    value = f"c{products[1]}"
    found: dict[str, list[Place]] = {"N": [(query, 0)]} if rank == 4 else {}
    return found | {
        "heads": [(query, rank - 3)],
        "S": _equal(linked, [(query, rank - 2), (key, rank - 1)]),
        "D": _equal(linked, [(query, rank - 1), (value, len(linked.shapes[value]) - 1)]),
    }


def _attention_operator(linked: LinkedFragment, query: str, key: str, value: str) -> dict[str, list[Place]]:
    return {
        "N": [(query, 0)],
        "heads": [(query, 2)],
        "S": _equal(linked, [(query, 1), (key, 1)]),
        "D": _equal(linked, [(query, 3), (value, 3)]),
    }


def _equal(linked: LinkedFragment, places: Sequence[Place]) -> list[Place]:
    """Return the places of the first one's size: keys may be as many as queries, or others."""
    return [place for place in places if _size(linked, place) == _size(linked, places[0])]


def _size(linked: LinkedFragment, place: Place) -> int:
    return size_at(Sizes(linked), place)


def _cost(linked: LinkedFragment, number: int) -> int:
    """Return about how many numbers a call multiplies or reads."""
    call = linked.fragment.calls[number]
    sizes = [linked.shapes[name] for name in tensors(call.operands)]
    made = sum(math.prod(linked.shapes[name]) for name in results_of(number, linked.shapes))
    if call.operator in CONVOLUTIONS and len(sizes) > 1:
        return made * math.prod(sizes[1]) // max(1, sizes[1][0])
    if call.operator in ("matmul", "einsum") and sizes and sizes[0]:
        return made * sizes[0][-1]
    if call.operator.startswith("nn.attention"):
        return made * sizes[1][1] * 2
    return max([made, *map(math.prod, sizes)])
