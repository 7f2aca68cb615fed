"""Parses untrusted JSON: a second value for a key, NaN and infinities are errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fleet.errors import InvalidRequest

_DEEPEST = 16


def parse(content: bytes | str, where: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        InvalidRequest: it is not JSON in UTF-8, is nested too deeply, or its meaning depends on the reader.
    """
    try:
        return _decoder.decode(content if isinstance(content, str) else content.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not JSON: {str(error)[:100]}") from error


def parse_object(content: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object of at most `_DEEPEST` levels. Raises InvalidRequest."""
    found = parse(content, where)
    if not isinstance(found, dict):
        raise InvalidRequest(f"{where} is no JSON object")
    if _is_too_deep(found):
        raise InvalidRequest(f"{where} has more than {_DEEPEST} levels")
    return found


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [below for one in level if isinstance(one, dict | list) for below in _parts(one)]
        if not level:
            return False
    return True


def _parts(value: dict[str, object] | list[object]) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key has two values")
    return found


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


_decoder = json.JSONDecoder(object_pairs_hook=_without_duplicates, parse_constant=_refuse)
