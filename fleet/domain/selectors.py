"""Selectors: conditions on a device's name, kind and labels.

    cpu                          shorthand for kind=cpu
    kind=cpu,arch=x86_64         all conditions hold
    name=pi4-03                  one device ("devices/" may be left out)
    arch!=x86_64                 the label is different or absent
    model=Raspberry*             shell wildcards in the value
    *                            any device

Conditions are joined by commas. Two selectors that mean the same have the same `str()`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fleet.domain.devices import DeviceStatus
from fleet.errors import InvalidRequest

_CONDITION = re.compile(r"(?P<key>[a-z][a-z0-9_.-]*)(?P<operator>!?=)(?P<value>[^,=!\ud800-\udfff]+)")
_DEVICES = "devices/"
_KIND = re.compile(r"[a-z][a-z0-9_-]*")
_NAMEABLE = re.compile(r"[^,=!*?\[\]\s](?:[^,=!*?\[\]\n]*[^,=!*?\[\]\s])?")

FOUND_LABELS = frozenset(
    {"arch", "bitstream", "board", "board_kind", "cores", "emulated", "host"}
    | {"kind", "mcpu", "missing", "model", "name", "runtime"}
)
"""Keys that tracker and drivers set on most devices, so that nobody gives them another meaning."""


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """One comparison of a label with a pattern."""

    key: str
    pattern: str
    is_negated: bool = False

    def holds(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        found = value is not None and (value == self.pattern or fnmatchcase(value, self.pattern))
        return found is not self.is_negated

    def __str__(self) -> str:
        return f"{self.key}{'!=' if self.is_negated else '='}{self.pattern}"


@dataclass(frozen=True, slots=True)
class Selector:
    """Conditions that must all hold, sorted and without repeats."""

    conditions: tuple[Condition, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether a device with these labels matches. They include "name" and "kind", see `device_labels`."""
        return all(condition.holds(labels) for condition in self.conditions)

    @property
    def kind(self) -> str | None:
        """Kind of device that the selector names without wildcards; empty otherwise."""
        kinds = (c.pattern for c in self.conditions if c.key == "kind" and not c.is_negated and "*" not in c.pattern)
        return next(kinds, None)

    def __and__(self, other: Selector) -> Selector:
        """Return a selector of devices that match both."""
        return Selector(tuple(sorted({*self.conditions, *other.conditions})))

    def __str__(self) -> str:
        return ",".join(map(str, self.conditions)) or "*"


def is_nameable(value: str) -> bool:
    """Tell whether a selector can match a label of this value exactly."""
    return _NAMEABLE.fullmatch(value) is not None


ANY = Selector(())
"""Any device."""


@functools.lru_cache(maxsize=1024)
def parse_selector(text: str) -> Selector:
    """Read a selector.

    Raises:
        InvalidRequest: `text` is not a selector; the message names the bad part and shows a good one.
    """
    parts = [part.strip() for part in text.split(",")]
    if parts == ["*"]:
        return ANY
    return Selector(tuple(sorted({_parse_condition(part, text) for part in parts})))


def device_labels(name: str, kind: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels for selectors: a device's labels, name (without "devices/") and kind."""
    return {**labels, "name": name.removeprefix("devices/"), "kind": kind}


def labels_of(device: DeviceStatus) -> dict[str, str]:
    """Return the labels for selectors of a device in a snapshot."""
    inventory = device.inventory
    bitstream = {"bitstream": device.bitstream_digest} if device.bitstream_digest else {}
    return {**device_labels(device.name, inventory.kind, inventory.labels), **bitstream}


def _parse_condition(part: str, text: str) -> Condition:
    if _KIND.fullmatch(part):
        return Condition("kind", part)
    match = _CONDITION.fullmatch(part)
    value = match["value"].strip() if match else ""
    if match and match["key"] == "name":
        value = value.removeprefix(_DEVICES).strip()
    # A text that differs from its canonical form is not a name.
    if not match or not value or (match["key"] == "name" and value.startswith(_DEVICES)):
        raise InvalidRequest(
            f"selector {text!r}: cannot read {part!r}; write it like 'cpu' or 'kind=cpu,arch!=aarch64'"
        )
    return Condition(match["key"], value, match["operator"] == "!=")
