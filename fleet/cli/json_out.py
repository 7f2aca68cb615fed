"""Output of commands with --json: one object, with a shape in `fleet.cli.json_schema` for each command.

All of them keep the same rules, and this is the place that sees to them: the version of the schema comes first; times
are numbers of seconds in keys that end with `_sec`; moments are RFC 3339 in UTC; names of states are small letters.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime

SCHEMA = 1
"""Incremented when a key is removed or changes its meaning, not when one is added."""

_PER_SEC = {"_us": 1e6, "_ms": 1e3}
_KEEPS_UNITS = frozenset({"model", "model_runs", "spec"})
"""Keys of objects that keep milliseconds: of whole models since the first version, of options as they were given."""


_is_printed: ContextVar[bool] = ContextVar("fleet_document_printed", default=False)


def begin() -> None:
    """Start a command that has printed no document yet."""
    _is_printed.set(False)


def is_printed() -> bool:
    """Tell whether this command has printed its document. Later errors, such as a wrong answer, are reported in it."""
    return _is_printed.get()


def print_document(value: Mapping[str, object], *, indent: int | None = 2) -> None:
    """Print one object on stdout."""
    _is_printed.set(True)
    print(json.dumps({"schema": SCHEMA, **in_seconds(value)}, indent=indent, allow_nan=False))


def in_seconds(value: Mapping[str, object]) -> dict[str, object]:
    """Return an object JSON-ready, with all durations in seconds."""
    found: dict[str, object] = {}
    for key, item in value.items():
        per_sec = _PER_SEC.get(key[-3:])
        if (key == "at_sec" or key.endswith("_at_sec")) and (item is None or isinstance(item, int | float)):
            found[key.removesuffix("_sec")] = None if item is None else _moment_at(item)
            continue
        if key in _KEEPS_UNITS:
            found[key] = _plain(item, keeps_units=True)
        elif per_sec is not None and (item is None or isinstance(item, int | float)):
            found[f"{key[:-3]}_sec"] = None if item is None else _plain(item / per_sec)
        else:
            found[key] = _plain(item)
    return found


def moment(when: datetime) -> str:
    """Return a moment as RFC 3339 in UTC: "2026-11-22T20:00:38.947621Z"."""
    return when.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _moment_at(at_sec: float) -> str | None:
    """Return a moment as text; None outside the calendar's range: an agent may send anything."""
    try:
        return moment(datetime.fromtimestamp(at_sec, UTC))
    except (OverflowError, OSError, ValueError):
        return None


def _plain(value: object, *, keeps_units: bool = False) -> object:
    if isinstance(value, Mapping):
        if keeps_units:
            return {str(key): _plain(item, keeps_units=True) for key, item in value.items()}
        return in_seconds(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, keeps_units=keeps_units) for item in value]
    if isinstance(value, enum.Enum):
        return str(value.value).lower()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # not representable in JSON, and an agent may send anything
    return moment(value) if isinstance(value, datetime) else value
