"""Steps from each older version of the journal to the next, so that an upgrade keeps leases, queue and epochs.

A step is a function of rows alone. It names no class: those change later, a step never does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

_Row: TypeAlias = tuple[str, str]
"""Key and content."""

_DEVICE = ("kind", "labels", "description", "address", "agent_id", "attached_at_sec", "detached_at_sec")
_LEASE = (
    *("epoch", "name", "client_id", "request_id", "holder", "purpose", "ttl_sec"),
    *("granted_at_sec", "expires_at_sec", "ends_at_sec"),
)
_REQUEST = (
    *("holder", "selector", "priority", "ttl_sec", "max_sec", "deadline_sec", "asked_at_sec", "purpose"),
    *("due_sec", "arrival"),
)
_TERMS = ("selector", "priority", "ttl_sec", "max_sec", "purpose")


def migrate(rows: Iterable[_Row], version: int) -> list[_Row]:
    """Return the rows of an older version as this version writes them.

    Raises:
        fleet.tracker.journal.codec.UNREADABLE: something else has written them.
    """
    while version in _STEPS:
        step = _STEPS[version]
        rows, version = [(key, step(key, content)) for key, content in rows], version + 1
    return list(rows)


def _name_fields(key: str, content: str) -> str:
    """Name the fields of version 2, which had lists of values."""
    values = json.loads(content)
    if not isinstance(values, list):
        raise TypeError(f"a list of values expected, not {type(values).__name__}")
    named: dict[str, Any]
    match key.partition(" ")[0]:
        case "device":
            named = dict(zip(_DEVICE, values, strict=True))
        case "lease":
            named = {"epoch": values[0]}
            if len(values) > 1:
                held = _with_terms(dict(zip(_LEASE, values[1:], strict=True)))
                named["lease"] = {**held, "terms": {"selector": "*", **held["terms"]}}
        case "request":
            named = _with_terms(dict(zip(_REQUEST, values, strict=True)))
            named["order"] = [named.pop("due_sec"), named.pop("arrival")]
        case kind:
            raise ValueError(f"an entry of the unknown kind {kind!r}")
    return json.dumps(named, separators=(",", ":"))


def _with_terms(named: Mapping[str, Any]) -> dict[str, Any]:
    """Move the terms of a lease or request into a separate field."""
    others = {name: value for name, value in named.items() if name not in _TERMS}
    return {**others, "terms": {name: named[name] for name in _TERMS if name in named}}


def _drop_order(key: str, content: str) -> str:
    """Replace the place of a request, which version 3 kept, by its arrival: accounts take turns since."""
    if key.partition(" ")[0] != "request":
        return content
    named = json.loads(content)
    _, named["arrival"] = named.pop("order")
    return json.dumps(named, separators=(",", ":"))


def _keep(_: str, content: str) -> str:
    """Keep a row of version 4. Its trackers know no health and no poison, and would grant one device for a set."""
    return content


def _keep_too(_: str, content: str) -> str:
    """Keep a row of version 5. Its trackers know no bookings, and would grant their devices to others."""
    return content


_STEPS: Mapping[int, Callable[[str, str], str]] = {2: _name_fields, 3: _drop_order, 4: _keep, 5: _keep_too}
"""Migrations by the version that they start from."""

OLDEST_VERSION = min(_STEPS)
SCHEMA_VERSION = max(_STEPS) + 1
