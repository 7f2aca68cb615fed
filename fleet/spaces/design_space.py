"""`Space`: the schedules that one function can have, as the choices of its knobs. A `SpaceRule` makes it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard

from fleet.spaces.facts import GpuFacts, ProcessorFacts

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule

Facts = ProcessorFacts | GpuFacts

_MOST_SHOWN = 12
"""Options of a knob that `repr` lists."""


class Knobs(Protocol):
    """One choice of all knobs: a frozen dataclass of numbers, enums, and other such dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Space:
    """The schedules of a function. Its `repr` lists the knobs and their options."""

    rule: str
    """Name of the rule that made the space: "product", "winograd", "attention", ..."""

    choices: tuple[Knobs, ...]
    """All choices, the most promising first; none: there is one schedule, without knobs."""

    schedules_at: Callable[[Sequence[int]], Iterator[Schedule]]
    """Yields the schedules of some of the choices, by their places; of a space without knobs, its only one."""

    is_baseline: bool = False
    """It is the schedule of untuned programs, which jobs measure anyway. The search does not propose it."""

    @property
    def knobs(self) -> dict[str, tuple[object, ...]]:
        """The options of each knob in ascending order; a knob of a nested choice is named "tile.lanes"."""
        options: dict[str, set[object]] = {}
        for choice in self.choices:
            for name, value in _values(choice):
                options.setdefault(name, set()).add(value)
        return {name: tuple(sorted(found, key=_order)) for name, found in options.items()}

    def __repr__(self) -> str:
        if not self.choices:
            return f"{self.rule}: one schedule"
        knobs = self.knobs
        width = max(map(len, knobs))
        lines = [f"  {name:<{width}}  {_shown(options)}" for name, options in knobs.items()]
        return "\n".join(
            [f"{self.rule}: {len(self.choices):,} choices", *lines, f"  first choice: {choice_text(self.choices[0])}"]
        )


def choice_text(choice: Knobs) -> str:
    """Return a choice as text: "tile.lanes=16, unroll=4"."""
    return ", ".join(f"{name}={_word(value)}" for name, value in _values(choice))


class SpaceRule(Protocol):
    """Makes the design spaces of some functions."""

    def space(self, mod: IRModule, facts: Facts) -> Space | None:
        """Return the space of a function; None if this rule has no schedules for the function, or for the target.

        Args:
            mod: one function, "main", of blocks with loops of fixed sizes. The rule must not modify it.
            facts: the processor's or the GPU's.
        """


def is_choice(value: object) -> TypeGuard[Knobs]:
    """Tell whether the value of a knob is a choice of knobs itself."""
    return is_dataclass(value) and not isinstance(value, type)


def _values(choice: Knobs, prefix: str = "") -> Iterator[tuple[str, object]]:
    for knob in fields(choice):
        value = getattr(choice, knob.name)
        if is_choice(value):
            yield from _values(value, f"{prefix}{knob.name}.")
        else:
            yield prefix + knob.name, value


def _shown(options: Sequence[object]) -> str:
    words = [_word(option) for option in options]
    return ", ".join(words if len(words) <= _MOST_SHOWN else [*words[: _MOST_SHOWN - 2], "...", words[-1]])


def _word(value: object) -> str:
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def _order(value: object) -> tuple[bool, float, str]:
    """Return the sort key of an option: numbers in ascending order, then words."""
    is_number = isinstance(value, (int, float))
    return not is_number, float(value) if isinstance(value, (int, float)) else 0.0, _word(value)
