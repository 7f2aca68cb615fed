"""Converts frozen dataclasses to JSON values and back.

A reader ignores keys that it does not know and gives a field that is not there its default, so that either side may be
the newer one.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

from fleet.errors import InvalidRequest

T = TypeVar("T")

_INFINITE = "Infinity"
"""JSON has no infinity, and times that are not known are infinite."""


class _Dataclass(Protocol):
    """Any dataclass, as type checkers see it."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


def to_plain(value: object) -> object:
    """Convert dataclasses, collections, paths, times and enums to JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_object(value)
    if isinstance(value, enum.Enum):
        return to_plain(value.value)
    if isinstance(value, Mapping):
        return {str(key.value if isinstance(key, enum.Enum) else key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and math.isinf(value):
        return _INFINITE if value > 0 else f"-{_INFINITE}"
    return value


def to_object(value: _Dataclass) -> dict[str, object]:
    """Convert a dataclass to a JSON object."""
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def from_plain(cls: type[T], plain: object) -> T:
    """Make a dataclass from the output of `to_plain`.

    Raises:
        InvalidRequest: a value has another type than its field.
    """
    return cast("T", _read(cls, plain, cls.__name__))


def _read(hint: object, plain: object, where: str) -> object:
    if type(plain) is hint:
        return plain
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _read_first(args, plain, where)
    if origin is typing.Literal and plain in args:
        return plain
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _read_fields(hint, plain, where)
    if origin in (tuple, list, Sequence) and isinstance(plain, list):
        hints = [args[0]] * len(plain) if origin is not tuple or args[1:] == (...,) else list(args)
        if len(hints) != len(plain):
            raise InvalidRequest(f"{where}: expected {len(hints)} values, found {len(plain)}")
        found = [_read(item, value, f"{where}[{n}]") for n, (item, value) in enumerate(zip(hints, plain, strict=True))]
        return found if origin is list else tuple(found)
    if (origin is Mapping or origin is dict) and isinstance(plain, dict):
        return {_read(args[0], key, where): _read(args[1], value, f"{where}.{key}") for key, value in plain.items()}
    if isinstance(hint, type):
        return _read_single(hint, plain, where)
    raise InvalidRequest(f"{where}: expected {hint}, found {plain!r}")


@functools.cache
def _hints_of(cls: type) -> dict[str, Any]:
    """Return the types of a class's fields that its constructor takes. Python evaluates them anew at each call."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _read_first(hints: Sequence[object], plain: object, where: str) -> object:
    for hint in hints:
        if hint is types.NoneType and plain is None:
            return None
    fault = InvalidRequest(f"{where}: there is no value")
    for hint in hints:
        if hint is types.NoneType:
            continue
        try:
            return _read(hint, plain, where)
        except InvalidRequest as error:
            fault = error
    raise fault


def _read_fields(cls: type, plain: object, where: str) -> object:
    if not isinstance(plain, dict):
        raise InvalidRequest(f"{where}: expected a {cls.__name__}, found {plain!r}")
    hints = _hints_of(cls)
    try:
        found = {name: (hint, plain[name]) for name, hint in hints.items() if name in plain}
        return cls(
            **{
                name: value if type(value) is hint else _read(hint, value, f"{where}.{name}")
                for name, (hint, value) in found.items()
            }
        )
    except TypeError as error:  # a field without a default is missing
        raise InvalidRequest(f"{where}: {error}") from error


def _read_single(cls: type, plain: object, where: str) -> object:
    if cls is object:
        return plain
    if cls is float and plain in (_INFINITE, f"-{_INFINITE}"):
        return math.inf if plain == _INFINITE else -math.inf
    if cls is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if isinstance(plain, cls) and (cls is bool or not isinstance(plain, bool)):
        return plain
    try:
        if issubclass(cls, enum.Enum):
            return cls(plain)
        if isinstance(plain, str) and issubclass(cls, datetime):
            return datetime.fromisoformat(plain)
        if isinstance(plain, str) and issubclass(cls, Path):
            return Path(plain)
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from error
    raise InvalidRequest(f"{where}: expected {cls.__name__}, found {plain!r}")
