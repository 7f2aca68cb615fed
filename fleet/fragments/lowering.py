"""Lowers fragments from files. For a worker process: TVM may crash on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from cross.targets.target import Target
from fleet.errors import ImportFailed, InvalidRequest
from fleet.fragments.axes import Shapes
from fleet.fragments.built import shapes_of
from fleet.fragments.faithful import program_of
from fleet.fragments.fragment import Fragment
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
    if (size := sum(math.prod(one.shape) for one in fragment.weights)) > MOST_CONSTANTS:
        return Refusal(
            reason=Reason.SIZES, message=f"weights have {size} elements; at most {MOST_CONSTANTS} are lowered"
        )
    try:
        return shapes_of(fragment)
    except InvalidRequest as error:
        return Refusal(reason=Reason.INFERENCE, message=str(error))


def lowered(fragment: Fragment, target: Target) -> Entry | Refusal:
    """Return the workload of a fragment: its costliest program."""
    try:
        program = program_of(fragment, target)
    except InvalidRequest as error:
        return Refusal(reason=Reason.INFERENCE, message=str(error))
    except ImportFailed as error:
        return Refusal(reason=Reason.LOWERING, message=str(error))
    return Refusal(reason=Reason.PROGRAM, message="") if program is None else Entry.of(program, fragment)
