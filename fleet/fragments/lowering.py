"""Lowers fragments from files. For a worker process: TVM may crash on them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
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
from fleet.fragments.stored import from_stored
from fleet.fragments.workload_file import Entry


class Reason(StrEnum):
    """Reasons against a fragment."""

    DIMENSION = "no such dimension"
    SIZES = "sizes that do not fit"
    UNUSUAL = "attributes of an unusual form"
    INFERENCE = "refused by TVM's inference"
    CONTENT = "stored in no known form"
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
    program = _checked_program(entry.fragment, target)
    return program if isinstance(program, Refusal) else replace(program, weight=entry.calls)


def lowered_today(content: bytes, target: Target) -> Workload | Refusal:
    """Return the workload of a fragment in its stored form."""
    try:
        fragment = from_stored(content)
    except InvalidRequest as error:
        return Refusal(reason=Reason.CONTENT, message=str(error))
    return _checked_program(fragment, target)


def all_lowered_today(contents: Sequence[bytes], target: Target) -> list[Workload | Refusal]:
    """Return the workloads of fragments in their stored form."""
    return [lowered_today(content, target) for content in contents]


def faithful_of(candidates: Sequence[bytes], wanted: Collection[str], target: Target) -> tuple[str, bytes] | None:
    """Return the hash and content of the first fragment with a wanted program, or None without any.

    Args:
        candidates: stored forms.
        wanted: hashes.
    """
    for content in candidates:
        program = lowered_today(content, target)
        if isinstance(program, Workload) and program.shash in wanted:
            return program.shash, content
    return None


def _checked_program(fragment: Fragment, target: Target) -> Workload | Refusal:
    """Return the workload of any fragment, unless its constants are large."""
    shapes = inferred(fragment)
    if isinstance(shapes, Refusal):
        return shapes
    if refusal := _too_large(shapes[name] for name in shapes.keys() - variable_tensors(fragment, shapes)):
        return refusal
    return _program(fragment, target)


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
