"""Selectors: conditions on a device's name, kind and labels.

    cpu                          shorthand for kind=cpu
    kind=cpu,arch=x86_64         all conditions hold
    name=pi4-03                  one device ("devices/" may be left out)
    arch!=x86_64                 the label is different or absent
    model=Raspberry*             shell wildcards in the value
    arch=aarch64|armv7l          one of several values
    fpga!=none                   the label is present; fpga=none: it is absent
    mem>=2GiB,cores>4            comparison of a size, a number or a version, see `fleet.domain.quantities`
    *                            any device

Conditions are joined by commas. Two selectors that mean the same have the same `str()`, the canonical text. Trackers
that lack a form refuse its canonical text: values with | and "none" are written there with one more "=".
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, NoReturn, TypeAlias

from fleet.base.text import sanitize
from fleet.domain.devices import DeviceStatus
from fleet.domain.inventory_labels import automatic_labels
from fleet.domain.quantities import EXAMPLES, SIZE_UNITS, Quantity, Unit, read_quantity
from fleet.errors import InvalidRequest

_MAX_CHARS = 4_000
"""A tracker takes 1,000 characters; a request's selector and preference are joined."""
_MAX_SHOWN_CHARS = 60
_CONDITION = re.compile(r"(?P<key>[a-z][a-z0-9_.-]*)(?P<operator>!==|!=|==|>=|<=|=|>|<)(?P<value>.*)", re.DOTALL)
_KEY = re.compile(r"[a-z][a-z0-9_.-]*")
_DEVICES = "devices/"
_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_NAMEABLE = re.compile(r"[^,=!<>|*?\[\]\s](?:[^,=!<>|*?\[\]\n]*[^,=!<>|*?\[\]\s])?")
_ABSENT = "none"
_WILDCARDS = frozenset("*?[")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

FOUND_LABELS = frozenset(
    {"arch", "bitstream", "board", "board_kind", "cores", "emulated", "host"}
    | {"kind", "mcpu", "mem", "missing", "model", "name", "runtime", "tvm"}
)
"""Keys that tracker and drivers set on most devices, so that nobody gives them another meaning."""

_UNITS = {"cores": Unit.NUMBER, "driver": Unit.VERSION, "mem": Unit.SIZE, "tvm": Unit.VERSION}
"""Labels with one unit on all devices."""
_ANY_QUANTITY = f"expected a number, a version like {EXAMPLES[Unit.VERSION]}, or a size in {SIZE_UNITS}"


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a label with patterns."""

    key: str
    patterns: tuple[str, ...]
    """Sorted; one of them matches."""

    is_negated: bool = False
    """The single pattern does not match."""

    _values: frozenset[str] = field(init=False, compare=False, repr=False)
    _wildcards: re.Pattern[str] | None = field(init=False, compare=False, repr=False)
    """Compiled once: hundreds of values meet 10,000 devices."""

    def __post_init__(self) -> None:
        wild = [translate(pattern) for pattern in self.patterns if _WILDCARDS & set(pattern)]
        object.__setattr__(self, "_values", frozenset(self.patterns))
        object.__setattr__(self, "_wildcards", re.compile("|".join(wild)) if wild else None)

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        if value is None:
            return (_ABSENT in self._values) is not self.is_negated
        found = value in self._values or (self._wildcards is not None and self._wildcards.match(value) is not None)
        return found is not self.is_negated

    @property
    def exact_value(self) -> str | None:
        """The only value that a device may have; None if there are several."""
        (first, *others) = self.patterns
        return None if others or self.is_negated or _WILDCARDS & set(first) else first

    @property
    def order(self) -> tuple[str, str, str]:
        """Place among the conditions of a selector."""
        return self.key, "|".join(self.patterns), "!=" if self.is_negated else "="

    @property
    def text(self) -> str:
        """The condition as users write it."""
        key, value, sign = self.order
        return f"{key}{sign}{value}"

    def __str__(self) -> str:
        key, value, sign = self.order
        is_new = len(self.patterns) > 1 or _ABSENT in self.patterns
        return f"{key}{sign}{'=' if is_new else ''}{value}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A limit on a label that is a quantity."""

    key: str
    sign: str
    """One of < <= > >=."""

    limit: Quantity

    def holds(self, labels: Mapping[str, str]) -> bool:
        found = self._quantity(labels.get(self.key, ""))
        return found is not None and _OPERATORS[self.sign](found.value, self.limit.value)

    def incomparable(self, labels: Mapping[str, str]) -> str:
        """Return the label's value if it cannot be compared; empty if it can, or is absent."""
        value = labels.get(self.key, "")
        return "" if self._quantity(value) else value

    def _quantity(self, value: str) -> Quantity | None:
        found = read_quantity(value.removeprefix(f"{self.key}_"), _UNITS.get(self.key))  # sm=sm_90
        return found if found is not None and found.unit is self.limit.unit else None

    @property
    def order(self) -> tuple[str, str, str]:
        """Place among the conditions of a selector."""
        return self.key, self.limit.text, self.sign

    @property
    def text(self) -> str:
        """The comparison as users write it."""
        return f"{self.key}{self.sign}{self.limit.text}"

    def __str__(self) -> str:
        return self.text


Clause: TypeAlias = Condition | Comparison


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all hold, sorted and without repeats."""

    conditions: tuple[Clause, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a device with these labels matches. They include "name" and "kind", see `device_labels`."""
        return all(condition.holds(labels) for condition in self.conditions)

    def exact_value(self, key: str) -> str | None:
        """Return the value that a label of a matching device must have; None if the selector leaves a choice."""
        values = (c.exact_value for c in self.conditions if isinstance(c, Condition) and c.key == key)
        return next((value for value in values if value is not None), None)

    @property
    def kind(self) -> str | None:
        """Kind of device that the selector names without wildcards; empty otherwise."""
        return self.exact_value("kind")

    @property
    def text(self) -> str:
        """The selector as users write it."""
        return ",".join(condition.text for condition in self.conditions) or "*"

    def __and__(self, other: Selector) -> Selector:
        """Return a selector of devices that match both."""
        return _selector(self.conditions + other.conditions)

    def __str__(self) -> str:
        return ",".join(map(str, self.conditions)) or "*"


def selector_text(text: str) -> str:
    """Return a canonical selector as users write it; any other text, such as a newer tracker's selector, unchanged."""
    try:
        selector = parse_selector(text)
    except InvalidRequest:
        return text
    return selector.text if str(selector) == text else text


def is_nameable(value: str) -> bool:
    """Tell whether a selector can match a label of this value exactly."""
    return _NAMEABLE.fullmatch(value) is not None


ANY = Selector(())
"""Any device."""


@functools.lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """Read a selector.

    Raises:
        InvalidRequest: `text` is not a selector; the message names the character and shows a good selector.
    """
    _check_length(text)
    if sanitize(text) != text:
        at = next(at for at, sign in enumerate(text) if sanitize(sign) != sign)
        _refuse(text, at, "control characters are not allowed")
    if text.strip() == "*":
        return ANY
    clauses: list[Clause] = []
    at = 0
    for part in text.split(","):
        clauses += _read(text, at, at + len(part))
        at += len(part) + 1
    selector = _selector(clauses)
    _check_length(str(selector))  # "!=" with many values is longer there
    return selector


def device_labels(name: str, kind: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels for selectors: a device's labels, name (without "devices/") and kind."""
    return {**labels, "name": name.removeprefix("devices/"), "kind": kind}


def labels_of(device: DeviceStatus) -> dict[str, str]:
    """Return the labels for selectors of a device in a snapshot."""
    inventory = device.inventory
    bitstream = {"bitstream": device.bitstream_digest} if device.bitstream_digest else {}
    return {**device_labels(device.name, inventory.kind, automatic_labels(inventory)), **bitstream}


def check_comparable(selector: Selector, devices: Iterable[Mapping[str, str]]) -> None:
    """Refuse a comparison with labels of other units. A label that every device lacks is not a mistake.

    Args:
        selector: may have comparisons.
        devices: labels of every device.

    Raises:
        InvalidRequest: the label of every device that has it is text, or a quantity of another unit.
    """
    for clause in selector.conditions:
        if not isinstance(clause, Comparison):
            continue
        values = [labels for labels in devices if clause.key in labels]
        others = [value for labels in values if (value := clause.incomparable(labels))]
        if others and len(others) == len(values):
            raise InvalidRequest(
                f"selector {str(selector)!r}: {clause} compares a {clause.limit.unit}, but {clause.key!r} is one on no "
                f"device; it is {_described(others[0])}, for example; compare like with like"
            )


def _described(value: str) -> str:
    found = read_quantity(value)
    return f"the {found.unit if found else 'text'} {value!r}"


def _selector(clauses: Iterable[Clause]) -> Selector:
    return Selector(tuple(sorted(set(clauses), key=lambda clause: clause.order)))


def _check_length(text: str) -> None:
    if len(text) > _MAX_CHARS:
        raise InvalidRequest(f"a selector of {len(text)} characters is too long; at most {_MAX_CHARS} are read")


def _read(text: str, start: int, end: int) -> Iterator[Clause]:
    """Yield the clauses of the condition in `text[start:end]`."""
    start += len(text[start:end]) - len(text[start:end].lstrip())
    part = text[start:end].rstrip()
    if not part:
        _refuse(text, start, "a condition is missing")
    if _KIND.fullmatch(part):
        yield Condition("kind", (part,))
        return
    match = _CONDITION.fullmatch(part)
    if not match:
        key = _KEY.match(part)
        _refuse(
            text, start + (key.end() if key else 0), "expected =, !=, <, <=, > or >=" if key else "expected a label"
        )
    at = start + match.start("value")
    if bad := re.search(r"[=!<>]", match["value"]):
        _refuse(text, at + bad.start(), f"unexpected {bad[0]!r}")
    if match["operator"] in _OPERATORS:
        yield _comparison(match, text, start, at)
        return
    patterns = _patterns(match, text, at)
    if match["operator"].startswith("!"):
        yield from (Condition(match["key"], (pattern,), True) for pattern in patterns)
    else:
        yield Condition(match["key"], tuple(sorted(set(patterns))))


def _patterns(match: re.Match[str], text: str, at: int) -> list[str]:
    patterns = []
    for part in match["value"].split("|"):
        pattern = part.strip()
        if match["key"] == "name":
            pattern = pattern.removeprefix(_DEVICES).strip()
        # A text that differs from its canonical form is not a name.
        if not pattern or (match["key"] == "name" and pattern.startswith(_DEVICES)):
            _refuse(text, at, "a value is missing" if not pattern else "a name has 'devices/' once")
        patterns.append(pattern)
        at += len(part) + 1
    return patterns


def _comparison(match: re.Match[str], text: str, start: int, at: int) -> Comparison:
    key, value = match["key"], match["value"].strip()
    at += len(match["value"]) - len(match["value"].lstrip())
    unit = _UNITS.get(key)
    if unit is None and key in FOUND_LABELS:
        _refuse(text, start + match.end("key") - match.start(), f"{key!r} is text, which is compared by = or !=")
    limit = read_quantity(value, unit)
    if limit is None:
        units = f" in {SIZE_UNITS}" if unit is Unit.SIZE else ""
        expected = f"{key!r} is a {unit}{units}, like {EXAMPLES[unit]}" if unit else _ANY_QUANTITY
        _refuse(text, at, expected)
    return Comparison(key, match["operator"], limit)


def _refuse(text: str, at: int, problem: str) -> NoReturn:
    shown = text
    if len(text) > _MAX_SHOWN_CHARS:
        first = max(0, at - _MAX_SHOWN_CHARS // 2)
        shown = f"{'...' if first else ''}{text[first : first + _MAX_SHOWN_CHARS]}..."
    raise InvalidRequest(
        f"selector {shown!r}, character {at + 1}: {problem}; write it like 'cpu', 'arch!=aarch64' or 'mem>=2GiB'"
    )
