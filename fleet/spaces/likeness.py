"""Finds the choice of a function's knobs that is most similar to another function's best choice.

The result is a choice of the function's own space: it is legal there for any sizes of the other function.
Where its sizes allow it, it is the same one; else each number is near the other's, by their ratio.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from fleet.spaces.design_space import Knobs, Space, choice_text, is_choice

if TYPE_CHECKING:
    from tvm.s_tir import Schedule

_MOST_TRIED = 32
"""Choices that are applied to find the one that a schedule has; 10 ms each. Of tiles of a product that split loops by
the same numbers there are two orders, and as many again in which two numbers have changed places."""


def nearest(wanted: Knobs, choices: Sequence[Knobs]) -> int | None:
    """Return the index of the choice that is most similar to another, the first of equals; None if none has its
    knobs.
    """
    alike = [place for place, choice in enumerate(choices) if type(choice) is type(wanted)]
    return min(alike, key=lambda place: distance(wanted, choices[place]), default=None)


def distance(one: Knobs, other: Knobs) -> float:
    """Return the distance of two choices of the same knobs: the logarithms of ratios, plus 1 for each different
    order.
    """
    return sum(_apart(getattr(one, knob.name), getattr(other, knob.name)) for knob in fields(one))


def choice_of(space: Space, scheduled: Schedule, knobs: str = "") -> Knobs | None:
    """Return the choice of its own space that produces a schedule's program; None if no likely one does.

    Steps do not name knobs, but split loops by them. So few choices have to be applied if the knobs are unknown.

    Args:
        knobs: the choice as text, if its record has it.
    """
    named = next((choice for choice in space.choices if knobs and choice_text(choice) == knobs), None)
    return named or _applied_choice(space, scheduled)


def _applied_choice(space: Space, scheduled: Schedule) -> Knobs | None:
    """Find a schedule's choice by applying the choices with the same split factors."""
    import tvm_ffi

    factors = Counter(_split_factors(scheduled))
    numbers = [Counter(_numbers(choice)) for choice in space.choices]
    likely = [place for place, of_choice in enumerate(numbers) if of_choice <= factors]
    likely = sorted(likely, key=lambda place: -numbers[place].total())[:_MOST_TRIED]
    if not likely:
        return None
    for place, made in zip(likely, space.schedules_at(likely), strict=True):
        if tvm_ffi.structural_equal(made.mod, scheduled.mod):
            return space.choices[place]
    return None


def _apart(one: object, other: object) -> float:
    if isinstance(one, int) and isinstance(other, int):
        return abs(math.log2((1 + one) / (1 + other)))
    if is_choice(one) and is_choice(other) and type(one) is type(other):
        return distance(one, other)
    return float(one != other)


def _numbers(knobs: Knobs) -> Iterator[int]:
    """Yield the split factors above 1 of a choice."""
    for knob in fields(knobs):
        value = getattr(knobs, knob.name)
        if is_choice(value):
            yield from _numbers(value)
        elif isinstance(value, int) and value > 1 and knob.name != "last":  # a remainder in a vector is not a split
            yield value


def _split_factors(scheduled: Schedule) -> Iterator[int]:
    from tvm.tirx import IntImm

    for step in scheduled.trace.insts:
        if step.kind.name == "Split":
            yield from (int(factor) for factor in step.inputs[1:] if isinstance(factor, IntImm))
