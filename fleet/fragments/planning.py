"""Applies rules to the workloads of a file, before anything is lowered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fleet.errors import ConfigError, InvalidRequest
from fleet.fragments.axes import LinkedFragment, Shapes
from fleet.fragments.dimensions import DTYPE, Dimension, dimensions_of
from fleet.fragments.fragment import Fragment
from fleet.fragments.links import linked
from fleet.fragments.lowering import Reason, Refusal
from fleet.fragments.mutation import mutated
from fleet.fragments.rules import Rule
from fleet.fragments.workload_file import Entry

_UNUSUAL = (ArithmeticError, LookupError, TypeError, ValueError)
"""Errors of the rules of operators on attributes that no import gives; the file may come from anybody."""

_MOST_COMBINATIONS = 200_000
"""Of all rules and workloads, before `where`. They take a minute."""


@dataclass(slots=True, kw_only=True)
class Refusals:
    """Refusals by reason, with one message of each."""

    counts: dict[Reason, int] = field(default_factory=dict)
    examples: dict[Reason, str] = field(default_factory=dict)

    def add(self, reason: Reason, message: str = "") -> None:
        """Count a refusal."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, message)


def plan(
    workloads: Sequence[tuple[Entry, Shapes | Refusal]], rules: Sequence[Rule], *, limit: int, refusals: Refusals
) -> list[Fragment]:
    """Return the fragments that rules make of workloads, each once.

    Args:
        workloads: with the shapes that TVM infers.
        limit: of fragments.

    Raises:
        ConfigError: a value is no size, there are more than 200,000 combinations, or more fragments than `limit`.
    """
    pairs = list(_pairs(workloads, rules, refusals))
    if (count := sum(one.count for one in pairs)) > _MOST_COMBINATIONS:
        raise ConfigError(f"the rules give {count} combinations; at most {_MOST_COMBINATIONS}: list fewer values")
    digests: set[str] = set()
    found: list[Fragment] = []
    for fragment in itertools.chain.from_iterable(one.mutations(refusals) for one in pairs):
        if fragment.digest in digests:
            refusals.add(Reason.SAME_FRAGMENT)
        elif len(digests) < limit:
            found.append(fragment)
        digests.add(fragment.digest)
    if len(digests) > limit:
        raise ConfigError(f"the rules give {len(digests)} workloads; --limit allows {limit}: raise it or list less")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """A rule, and a workload that it matches."""

    rule: Rule
    operator: str
    fragment: LinkedFragment
    dimensions: Mapping[str, Dimension]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: one.size for name, one in self.dimensions.items()}

    @property
    def count(self) -> int:
        try:
            return math.prod(map(len, self.rule.choices(self.sizes)))
        except ConfigError as error:
            raise ConfigError(f"{error}, for {self.operator!r}") from error

    def mutations(self, refusals: Refusals) -> Iterator[Fragment]:
        for values in self.rule.combinations(self.sizes):
            try:
                yield mutated(self.fragment, self.dimensions, values)
            except InvalidRequest as error:
                refusals.add(Reason.SIZES, f"{self.operator}: {error}")
            except _UNUSUAL as error:
                refusals.add(Reason.UNUSUAL, f"{self.operator}: {error!r}")


def _pairs(
    workloads: Sequence[tuple[Entry, Shapes | Refusal]], rules: Sequence[Rule], refusals: Refusals
) -> Iterator[_Pair]:
    for entry, shapes in workloads:
        matching = [rule for rule in rules if rule.matches(entry.operator)]
        if isinstance(shapes, Refusal):
            refusals.add(shapes.reason, f"{entry.operator}: {shapes.message}")
            continue
        try:
            fragment = linked(entry.fragment, shapes)
            dimensions = dimensions_of(fragment)
        except _UNUSUAL as error:
            refusals.add(Reason.UNUSUAL, f"{entry.operator}: {error!r}")
            continue
        for rule in matching:
            if lacking := sorted(rule.names - {*dimensions, DTYPE}):
                refusals.add(Reason.DIMENSION, f"{entry.operator} has no {lacking[0]}")
            else:
                yield _Pair(rule=rule, operator=entry.operator, fragment=fragment, dimensions=dimensions)
