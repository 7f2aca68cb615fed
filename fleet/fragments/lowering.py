"""Lowers fragments from files. For a worker process: TVM may crash on them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from cross.targets.target import Target
from fleet.domain.workload import Workload
from fleet.errors import ImportFailed, InvalidRequest
from fleet.fragments.axes import Shapes
from fleet.fragments.built import shapes_of
from fleet.fragments.faithful import program_of
from fleet.fragments.fragment import Fragment
from fleet.fragments.links import variable_tensors
from fleet.fragments.mutation import MOST_CONSTANTS
from fleet.fragments.workload_file import Entry


class Reason(StrEnum):
    """Reasons against a mutation."""

    DIMENSION = "no such dimension"
    SIZES = "sizes that do not fit"
    UNUSUAL = "attributes of an unusual form"
    INFERENCE = "refused by TVM's inference"
    LOWERING = "TVM cannot lower it"
    PROGRAM = "no program of known size"
    CRASH = "TVM crashed or took over a minute"
    SAME_FRAGMENT = "same operators as another"
    SAME_PROGRAM = "same program as another"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A fragment that gives no workload."""

    reason: Reason
    message: str


def inferred(fragment: Fragment) -> Shapes | Refusal:
    """Return the shapes of a fragment's tensors."""
    if refusal := _too_large(one.shape for one in fragment.weights):
        return refusal
    try:
        return shapes_of(fragment)
    except InvalidRequest as error:
        return Refusal(reason=Reason.INFERENCE, message=str(error))


def lowered(fragment: Fragment, target: Target) -> Entry | Refusal:
    """Return the workload of a fragment: its costliest program."""
    program = _program(fragment, target)
    return program if isinstance(program, Refusal) else Entry.of(program, fragment)


def tunable(entry: Entry, target: Target) -> Workload | Refusal:
    """Return the workload of an entry of any file, with the calls by all its models as its weight."""
    shapes = inferred(entry.fragment)
    if isinstance(shapes, Refusal):
        return shapes
    if refusal := _too_large(shapes[name] for name in shapes.keys() - variable_tensors(entry.fragment, shapes)):
        return refusal
    program = _program(entry.fragment, target)
    return program if isinstance(program, Refusal) else replace(program, weight=entry.calls)


def _too_large(constants: Iterable[tuple[int, ...]]) -> Refusal | None:
    """Return a refusal of constants that lowering would compute in too much memory."""
    if (size := sum(map(math.prod, constants))) <= MOST_CONSTANTS:
        return None
    message = f"weights and constants have {size} elements; at most {MOST_CONSTANTS} are lowered"
    return Refusal(reason=Reason.SIZES, message=message)


def _program(fragment: Fragment, target: Target) -> Workload | Refusal:
    try:
        program = program_of(fragment, target)
    except InvalidRequest as error:
        return Refusal(reason=Reason.INFERENCE, message=str(error))
    except ImportFailed as error:
        return Refusal(reason=Reason.LOWERING, message=str(error))
    return Refusal(reason=Reason.PROGRAM, message="") if program is None else program
