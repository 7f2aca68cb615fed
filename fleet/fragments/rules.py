"""Rules that give workloads other sizes: a file of YAML.

    - match: 'conv2d 3x3*'
      set: {N: [1, 8], C: '[v, v * 2]', 'H,W': '[v, v // 2]', dtype: [float32, float16]}
      where: N * C * H * W <= 2 ** 22

`match` is a shell pattern over readable names. `v` is the present size. All combinations of the values are made.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.base.config import did_you_mean, parse, parse_plain_yaml, shown
from fleet.base.source_locations import at, at_key
from fleet.errors import ConfigError
from fleet.fragments.dimensions import DTYPE, NAMES
from fleet.fragments.expressions import Expression, Number
from fleet.fragments.fragment import DTYPES

_PRESENT = "v"
_LARGEST = 2**20
_MOST_VALUES = 1000
_MOST_RULES = 1000
_SIZES = frozenset(NAMES) - {DTYPE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Values of one or several dimensions that share them."""

    names: tuple[str, ...]
    choices: tuple[Expression | Number | str, ...]
    """Words for the type; numbers, and expressions that give one or several, for sizes."""

    where: str

    def of(self, sizes: Mapping[str, int]) -> list[int | str]:
        """Return the values for present sizes, each once.

        Raises:
            ConfigError: one is no whole number from 1 to 2^20.
        """
        found: dict[int | str, None] = {}
        for choice in self.choices:
            given = (
                choice.value({**sizes, _PRESENT: sizes[self.names[0]]}) if isinstance(choice, Expression) else choice
            )
            for value in given if isinstance(given, list) else [given]:
                found[value if isinstance(value, str) else self._checked(value)] = None
        return list(found)

    def _checked(self, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{self.where}: {shown(value)} is no size; write a whole number from 1 to 2^20")
        if not 1 <= value <= _LARGEST or value != math.floor(value):
            raise ConfigError(f"{self.where}: the size {value:.10g} is no whole number from 1 to 2^20")
        return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule."""

    match: str
    values: tuple[Values, ...]
    condition: Expression | None
    where: str

    @property
    def names(self) -> set[str]:
        """Dimensions that it sets or reads."""
        given = [one for values in self.values for one in values.choices] + [self.condition]
        read = {name for one in given if isinstance(one, Expression) for name in one.names}
        return read.union(*(values.names for values in self.values)) - {_PRESENT}

    def matches(self, operator: str) -> bool:
        """Tell whether a readable name fits."""
        return fnmatch.fnmatchcase(operator, self.match)

    def choices(self, sizes: Mapping[str, int]) -> list[list[int | str]]:
        """Return the values of each of `self.values`.

        Args:
            sizes: present sizes of the workload's dimensions, at least those in `names` but for the type.

        Raises:
            ConfigError: a value is no size.
        """
        return [one.of(sizes) for one in self.values]

    def combinations(self, sizes: Mapping[str, int]) -> Iterator[dict[str, int | str]]:
        """Yield all combinations of values that fulfil the condition, by name. See `choices`."""
        for chosen in itertools.product(*self.choices(sizes)):
            pairs = zip(self.values, chosen, strict=True)
            found = {name: value for one, value in pairs for name in one.names}
            if self._allows({**sizes, **{name: value for name, value in found.items() if isinstance(value, int)}}):
                yield found

    def _allows(self, sizes: Mapping[str, int]) -> bool:
        return self.condition is None or bool(self.condition.value(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """A rule as it stands in a file."""

    match: str
    set: dict  # type: ignore[type-arg] # `parse` checks plain types
    where: str | None = None


def parse_rules(text: str, *, where: str) -> list[Rule]:
    """Return the rules of a file.

    Raises:
        ConfigError: the text is no list of rules, or one of them has an unknown dimension or a wrong value; with line.
    """
    content, place = parse_plain_yaml(text, where=where)
    if not isinstance(content, list) or not 0 < len(content) <= _MOST_RULES:
        raise ConfigError(f"{where}: expected a list of 1 to {_MOST_RULES} rules, each with match and set")
    return [_rule(one, at(place, n)) for n, one in enumerate(content)]


def _rule(content: object, where: str) -> Rule:
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: expected a rule with match and set, found {shown(content)}")
    written = parse(_Written, content, where=where)
    if not written.set:
        raise ConfigError(f"{at(where, 'set')}: names no dimension; known are {', '.join(NAMES)}")
    values = tuple(_values(key, value, at(where, "set")) for key, value in written.set.items())
    names = [name for one in values for name in one.names]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{at(where, 'set')}: sets {twice[0]} more than once")
    condition = written.where and Expression(written.where, names=_SIZES, where=at(where, "where"))
    return Rule(match=written.match, values=values, condition=condition or None, where=where)


def _values(key: object, content: object, where: str) -> Values:
    place = at(where, key)
    names = tuple(part.strip() for part in key.split(",")) if isinstance(key, str) else ()
    if not names:
        raise ConfigError(f"{at_key(where, key)}: unknown dimension {shown(key)}; known are {', '.join(NAMES)}")
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"{at_key(where, key)}: unknown dimension {shown(name)}{did_you_mean(name, NAMES)}")
    if DTYPE in names and len(names) > 1:
        raise ConfigError(f"{at_key(where, key)}: {DTYPE} shares its value with no size; set it alone")
    items = content if isinstance(content, list) else [content]
    if not 0 < len(items) <= _MOST_VALUES:
        raise ConfigError(f"{place}: expected 1 to {_MOST_VALUES} values, found {len(items)}")
    choices = _types(items, place) if DTYPE in names else [_choice(one, place) for one in items]
    return Values(names=names, choices=tuple(choices), where=place)


def _types(items: Sequence[object], where: str) -> list[str]:
    for one in items:
        if one not in DTYPES:
            raise ConfigError(f"{where}: unknown type {shown(one)}{did_you_mean(str(one)[:40], DTYPES)}")
    return [str(one) for one in items]


def _choice(content: object, where: str) -> Expression | Number:
    if isinstance(content, int | float) and not isinstance(content, bool):
        return content  # a size outside the limits is refused with the others
    if isinstance(content, str):
        return Expression(content, names=_SIZES | {_PRESENT}, where=where)
    raise ConfigError(f"{where}: {shown(content)} is no size; write a whole number from 1 to 2^20, or an expression")
