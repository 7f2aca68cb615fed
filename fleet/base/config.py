"""Configuration files: YAML into frozen dataclasses, with errors that name the nearest known key.

Uses no validation library: agents read their configuration with this too, and there are no wheels for boards.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import os
import reprlib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from fleet.base import yaml_text
from fleet.base.source_locations import SourceLocation, at, at_key, named_in_errors
from fleet.errors import ConfigError

T = TypeVar("T")

TRACKER_PORT = 9290
"""Default address of a tracker, for itself and for clients."""

_HUGE = 10**300
"""Whole numbers from here on are refused where a float is expected: it cannot hold all of them."""

_WORDS: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    Path: "a path",
}
"""Names of types in messages to people who write YAML."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a configuration file, as `parse` accepts it."""

    name: str
    expects: str
    """Type in words: "text or a list"."""

    default: object = None
    """None, too, if the default is an empty list or mapping."""

    is_required: bool = False
    doc: str = ""
    """Purpose, in a sentence or two."""


def keys_of(cls: type) -> list[Key]:
    """Return the keys that `parse` accepts for a dataclass, in the order of its fields.

    A key is documented in its type: `name: Annotated[str, "What it is for."] = ""`.
    """
    plain, full = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    return [
        Key(
            name=field.name,
            expects=_expected(plain[field.name]),
            default=None if field.default is dataclasses.MISSING else field.default,
            is_required=_is_required(field),
            doc=next(iter(getattr(full[field.name], "__metadata__", ())), ""),
        )
        for field in dataclasses.fields(cls)
    ]


def data_dir() -> Path:
    """Return the folder for lasting files: $FLEET_DATA_DIR, else tvm-fleet in the XDG data directory."""
    return Path(os.environ.get("FLEET_DATA_DIR") or _xdg_dir("XDG_DATA_HOME", ".local/share"))


def cache_dir() -> Path:
    """Return the folder for recreatable files: $FLEET_CACHE_DIR, else tvm-fleet in the XDG cache directory."""
    return Path(os.environ.get("FLEET_CACHE_DIR") or _xdg_dir("XDG_CACHE_HOME", ".cache"))


def state_dir() -> Path:
    """Return the folder for state of this account on this machine: tvm-fleet in the XDG state folder."""
    return _xdg_dir("XDG_STATE_HOME", ".local/state")


def credentials_dir() -> Path:
    """Return the folder of this account's keys: $FLEET_CREDENTIALS_DIR, else in tvm-fleet of the XDG state folder."""
    return Path(os.environ.get("FLEET_CREDENTIALS_DIR") or state_dir() / "credentials")


def config_file() -> Path:
    """Return the path of config.yaml: $FLEET_CONFIG, else in tvm-fleet of the XDG config folder. It need not exist."""
    return Path(os.environ.get("FLEET_CONFIG") or _xdg_dir("XDG_CONFIG_HOME", ".config") / "config.yaml")


def cross_config_file() -> Path:
    """Return the path of cross.yaml: $FLEET_CROSS_CONFIG, else in the XDG config folder. It need not exist."""
    return Path(os.environ.get("FLEET_CROSS_CONFIG") or _xdg_dir("XDG_CONFIG_HOME", ".config") / "cross.yaml")


def at_home(path: str | Path) -> Path:
    """Return a path with ~ or ~NAME replaced by the home directory.

    Raises:
        ConfigError: there is no such user, or nobody knows the home of this one.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: there is no home directory of that name") from error


def read_yaml(path: Path, *, where: str = "") -> tuple[dict[str, object], SourceLocation]:
    """Return the mapping of a YAML file, and its place, which knows the lines.

    Args:
        where: name of the file in messages; empty: its path.

    Raises:
        ConfigError: the file is missing, too large, not YAML or not a mapping, or has a duplicate key.
    """
    return parse_yaml(yaml_text.read_text(path), where=where or str(path))


def parse_yaml(text: str, *, where: str, as_text: bool = False) -> tuple[dict[str, object], SourceLocation]:
    """Return the mapping of a YAML text, and its place, which knows the lines.

    Args:
        as_text: leave numbers, dates and booleans as they are written.

    Raises:
        ConfigError: the text is not YAML or not a mapping, or has a duplicate key.
    """
    content, place = _loaded(text, where, as_text=as_text)
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: expected 'key: value' lines, found a {type(content).__name__}")
    return content, place


def parse_plain_yaml(text: str, *, where: str) -> tuple[object, SourceLocation]:
    """Return the content of a YAML text without tags, anchors and aliases, and its place, which knows the lines.

    Raises:
        ConfigError: the text is not YAML, or is not plain, or has a duplicate key.
    """
    return _loaded(text, where, is_plain=True)


def parse(cls: type[T], values: Mapping[str, object], *, where: str) -> T:
    """Make the dataclass `cls` from a mapping.

    Args:
        where: place of the mapping, for messages; a `SourceLocation` adds the line of each key.

    Raises:
        ConfigError: an unknown key (the nearest known one is named), a missing key, or a value of the wrong type.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = _hints(cls)  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            word = key if isinstance(key, str) else shown(key)
            raise ConfigError(f"{at_key(where, key)}: unknown key {shown(key)}{did_you_mean(word, fields)}")
    for name, field in fields.items():
        if _is_required(field) and name not in values:
            raise ConfigError(f"{where}: the key {name!r} is missing")
    return cls(**{key: _checked(value, hints[key], where, key) for key, value in values.items()})


def nearest(word: str, known: typing.Iterable[str]) -> str | None:
    """Return the closest known word; None if none is close."""
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1)), None)


def shown(value: object) -> str:
    """Return a value from a file for an error message, shortened: aliases make a few bytes a value of gigabytes."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother, short.maxlong = 2, 100, 100, 40
    try:
        return short.repr(value)
    except ValueError:  # Python refuses to print whole numbers of thousands of digits
        return "a number of thousands of digits"


def did_you_mean(word: str, known: typing.Iterable[str]) -> str:
    """Return the end of a message about an unknown word: the closest known one, else a list of all."""
    known = sorted(known)
    close = nearest(word, known)
    return f"; did you mean {close!r}?" if close else f"; known are {', '.join(known)}"


def _loaded(text: str, where: str, *, as_text: bool = False, is_plain: bool = False) -> tuple[object, SourceLocation]:
    try:
        return yaml_text.load(text, where=where, as_text=as_text, is_plain=is_plain)
    except ConfigError:
        raise
    except Exception as error:  # PyYAML's errors, and others that it lets through for "!!float x" or a hundred brackets
        raise ConfigError(_syntax_text(error, where)) from error


def _syntax_text(error: Exception, where: str) -> str:
    """Return the message about a text that is not YAML, with its line if PyYAML names one."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        return f"{where}: line {mark.line + 1}, column {mark.column + 1} is not YAML: {error.problem}"
    return f"{where} is not YAML: {' '.join(str(error).split())}"


def _xdg_dir(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / default) / "tvm-fleet"


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _checked(value: object, hint: object, where: str, key: str) -> object:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is Any or (kind is types.NoneType and value is None):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < _HUGE:
            return float(value)
        if kind is Path and isinstance(value, str):
            with named_in_errors(at(where, key)):
                return at_home(value)
        if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    raise ConfigError(f"{at(where, key)}: expected {_expected(hint)}, found {shown(value)}")


def _expected(hint: object) -> str:
    """Name a type in words."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [typing.get_origin(option) or option for option in options if option is not types.NoneType]
    return " or ".join(_WORDS.get(kind, str(getattr(kind, "__name__", kind))) for kind in kinds)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
