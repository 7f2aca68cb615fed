"""A fragment: a few Relax operators as plain data, with inputs as parameters and weights as holes.

    inputs: [{shape: [1, 64, 56, 56], dtype: float32}]
    weights: [{shape: [64, 64, 3, 3], dtype: float32}]
    calls: [{operator: nn.conv2d, operands: [i0, w0], attributes: {strides: [1, 1]}},
            {operator: nn.relu, operands: [c0]}]

An operand names an input (i0), a weight (w0), the result of an earlier call (c0) or an item of its results (c0.1); or
it is a number, a list of operands, or a shape. The last call is the fragment's result.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fleet.base.digests import digest_of
from fleet.base.plain import to_object

MOST_VALUES = 64
"""Constants of more integers become holes, as do those of several floats: these are weights."""

DTYPES = (
    "bfloat16",
    "bool",
    *(f"float{n}" for n in (16, 32, 64)),
    *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)),
)
"""Types of tensors."""

Attribute: TypeAlias = "bool | int | float | str | tuple[Attribute, ...] | None"
Operand: TypeAlias = "str | int | float | Shape | tuple[Operand, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A shape as an operand: reshape has one."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input or a weight."""

    shape: tuple[int, ...]
    dtype: str
    values: tuple[bool | int | float, ...] = ()
    """Of a constant, in row-major order; a single value fills all of it. Empty: an input, or a hole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator."""

    operator: str
    """Its name without "relax."."""

    operands: tuple[Operand, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """Operators around one costly operator."""

    inputs: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    calls: tuple[Call, ...]

    @property
    def digest(self) -> str:
        """Digest of the content."""
        return digest_of(json.dumps(to_object(self), sort_keys=True).encode())
