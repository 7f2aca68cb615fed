"""Rules for design spaces, in order of precedence: installed ones by name, then our own.

A package brings rules of its own by entry points of the group "fleet.spaces", each the name of a class:

    [project.entry-points."fleet.spaces"]
    transpose = "tiled_transpose:TransposeRule"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from fleet.errors import InvalidRequest
from fleet.spaces.attention import attention_space
from fleet.spaces.design_space import Facts, Space, SpaceRule
from fleet.spaces.facts import ProcessorFacts
from fleet.spaces.fallback_rules import fallback_space
from fleet.spaces.gpu_defaults import DefaultOnGpus
from fleet.spaces.product_space import product_space
from fleet.spaces.recurrent import recurrence_space
from fleet.spaces.winograd import winograd_space

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.s_tir import Schedule

GROUP = "fleet.spaces"


@dataclass(frozen=True, slots=True)
class OnProcessors:
    """A rule for processors."""

    make: Callable[[IRModule, ProcessorFacts], Space | None]

    def space(self, mod: IRModule, facts: Facts) -> Space | None:
        return self.make(mod, facts) if isinstance(facts, ProcessorFacts) else None


BUILT_IN: tuple[SpaceRule, ...] = (
    OnProcessors(attention_space),
    OnProcessors(recurrence_space),
    OnProcessors(winograd_space),
    OnProcessors(product_space),
    OnProcessors(fallback_space),
    DefaultOnGpus(),
)


@functools.cache
def all_rules() -> tuple[SpaceRule, ...]:
    """Return all rules in order; installed ones are loaded once per process.

    Raises:
        InvalidRequest: an installed rule cannot be loaded.
    """
    installed = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return (*(_Installed(entry.name, _load(entry)) for entry in installed), *BUILT_IN)


@dataclass(frozen=True, slots=True)
class _Installed:
    """An installed rule, whose errors name its entry point."""

    name: str
    rule: SpaceRule

    def space(self, mod: IRModule, facts: Facts) -> Space | None:
        try:
            space = self.rule.space(mod, facts)
        except Exception as error:  # another package's code
            raise _failed(self.name, error) from error
        if space is None:
            return None
        return replace(space, schedules_at=functools.partial(self._schedules_at, space))

    def _schedules_at(self, space: Space, places: Sequence[int]) -> Iterator[Schedule]:
        try:
            yield from space.schedules_at(places)
        except Exception as error:  # another package's code
            raise _failed(self.name, error) from error


def _load(entry: EntryPoint) -> SpaceRule:
    try:
        rule: SpaceRule = entry.load()()
    except Exception as error:  # another package's code
        raise _failed(entry.name, error) from error
    return rule


def _failed(name: str, error: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the rule {name!r} of the entry points {GROUP!r} failed: {type(error).__name__}: {error}; "
        "correct it, or uninstall its package"
    )
