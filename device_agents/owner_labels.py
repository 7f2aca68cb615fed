"""Keys of agent.yaml that are valid for every driver: labels, facts stored with records, and hooks.

    devices:
      - driver: cpu
        labels: {rack: 3, cooling: fan}
        facts: {bought: 2026-03, heatsink: {make: Noctua, fins: 24}}

Selectors match labels; a found label wins over the owner's. Hooks are in `device_agents.hooks`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated

from device_agents.driver import DeviceFinder, Driver
from device_agents.hooks import HOOK_NAMES, Hooks, parse_hooks
from fleet.base.config import did_you_mean, keys_of, nearest, parse, shown
from fleet.base.source_locations import at, at_key
from fleet.domain.labels import MAX_GIVEN_LABELS, size_fault
from fleet.domain.selectors import FOUND_LABELS, is_nameable
from fleet.errors import ConfigError

_LABEL_KEY = re.compile(r"[a-z][a-z0-9_.-]*")
_MOST_BYTES = 4096
"""Maximum size of the facts of one device as JSON: they are sent with every measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLabels:
    """Keys that are valid in an entry of any driver."""

    labels: Annotated[
        dict[str, object], "Labels that selectors match, beside the detected ones: {rack: 3, cooling: fan}."
    ] = field(default_factory=dict)
    facts: Annotated[dict[str, object], "Whatever records should keep of the device, at most 4 KiB as JSON."] = field(
        default_factory=dict
    )
    before_lease: Annotated[
        dict[str, object] | None,
        "Hook that is run before a lease can use the device: {command: [PROGRAM, WORD], timeout_sec: 30}.",
    ] = None
    after_lease: Annotated[dict[str, object] | None, "Hook that is run after each lease."] = None
    power_cycle: Annotated[
        dict[str, object] | None,
        "Hook that switches the device off and on; run after a fault, at most three times a day.",
    ] = None

    def label_texts(self) -> dict[str, str]:
        """Return the labels as texts, as selectors match them."""
        return {key: _text(value) for key, value in self.labels.items()}

    def facts_json(self) -> str:
        """Return the facts as JSON; empty without facts."""
        return json.dumps(self.facts, sort_keys=True, allow_nan=False, default=_iso) if self.facts else ""

    def hooks(self, *, where: str) -> Hooks:
        """Return the hooks.

        Raises:
            ConfigError: see parse_hooks.
        """
        given = {name: content for name in HOOK_NAMES if (content := getattr(self, name)) is not None}
        return parse_hooks(given, where=where)


def split_owner_labels(
    entry: Mapping[str, object], where: str, *, own_keys: Collection[str] = ()
) -> tuple[OwnerLabels, dict[str, object]]:
    """Return the owner's labels, facts and hooks of an entry, and the remaining settings of its driver.

    Args:
        own_keys: settings of the driver: a simulated device may have any label, "arch" too.

    Raises:
        ConfigError: a label that no selector could name, facts that are too large or cannot be JSON, a bad hook, or an
            unknown key that is like one of these.
    """
    said = {key: value for key, value in entry.items() if key in _KEYS and key not in own_keys}
    for key in entry:
        if key not in said and key not in own_keys and nearest(str(key), {*own_keys, *_KEYS}) in _KEYS:
            raise ConfigError(f"{at_key(where, key)}: unknown key {shown(key)}{did_you_mean(str(key), _KEYS)}")
    given = parse(OwnerLabels, said, where=where)
    given.hooks(where=where)
    labels = at(where, "labels")
    for key, value in given.labels.items():
        _check_label(key, value, labels)
    if fault := size_fault(given.label_texts(), most=MAX_GIVEN_LABELS):
        raise ConfigError(f"{labels}: {fault}")
    try:
        size = len(given.facts_json().encode())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{at(where, 'facts')}: cannot be written as JSON: {error}") from error
    if size > _MOST_BYTES:
        most = f"at most {_MOST_BYTES}; keep the rest elsewhere"
        raise ConfigError(f"{at(where, 'facts')}: {size} bytes as JSON, {most}")
    return given, {key: value for key, value in entry.items() if key not in said}


_KEYS = tuple(key.name for key in keys_of(OwnerLabels))


class LabellingFinder:
    """Finder that adds its entry's labels, facts and hooks to the devices of another finder."""

    def __init__(self, finder: DeviceFinder, given: OwnerLabels) -> None:
        self._finder = finder
        self._given = given

    @property
    def preload(self) -> str | None:
        """See DeviceFinder."""
        return self._finder.preload

    async def look(self) -> list[Driver]:
        """See DeviceFinder."""
        return [with_owner_labels(driver, self._given) for driver in await self._finder.look()]

    async def wait(self) -> None:
        """See DeviceFinder."""
        await self._finder.wait()

    async def close(self) -> None:
        """See DeviceFinder."""
        await self._finder.close()


def with_owner_labels(driver: Driver, given: OwnerLabels) -> Driver:
    """Set the labels, facts and hooks of a driver that is not yet open, and return it."""
    driver.given_labels, driver.given_facts_json = given.label_texts(), given.facts_json()
    driver.hooks = given.hooks(where=driver.name)
    return driver


def _check_label(key: object, value: object, where: str) -> None:
    if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key):
        remedy = "write it like 'rack': a small letter, then letters and digits"
        raise ConfigError(f"{at_key(where, key)}: {shown(key)} is no key; {remedy}")
    if key in FOUND_LABELS:
        raise ConfigError(f"{at_key(where, key)}: the fleet finds {key!r} by itself; choose another key")
    if not isinstance(value, str | int | float | bool) or not is_nameable(_text(value)):
        remedy = "write a word or a number"
        raise ConfigError(f"{at(where, key)}: {shown(value)} is nothing that a selector can name; {remedy}")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _iso(value: object) -> str:
    """Return dates as ISO text: YAML converts texts that look like a date."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{value!r} is no JSON")
