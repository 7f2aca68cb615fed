"""Configuration files: YAML into frozen dataclasses, with errors that name the nearest known key.

No validation library: agents read their configuration with this too, and boards have no wheel of one.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from fleet.errors import ConfigError

T = TypeVar("T")

TRACKER_PORT = 9290
"""Where a tracker listens and clients look for one, unless told otherwise."""


_WORDS: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    Path: "a path",
}
"""What a type is called where YAML is written."""


def data_dir() -> Path:
    """Where lasting files go: $FLEET_DATA_DIR, else the XDG data directory's tvm-fleet."""
    named = os.environ.get("FLEET_DATA_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "tvm-fleet"


def cache_dir() -> Path:
    """Where files go that can be made again: $FLEET_CACHE_DIR, else the XDG cache directory's tvm-fleet."""
    named = os.environ.get("FLEET_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvm-fleet"


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Raises:
        ConfigError: the file is missing, no YAML, or no mapping.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected 'key: value' lines, found a {type(content).__name__}")
    return content


def parse(cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Make the dataclass `cls` from a mapping.

    Raises:
        ConfigError: an unknown key (the nearest known one is named), a missing key, or a value of the wrong type.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}{nearest(str(key), fields)}")
    for name, field in fields.items():
        is_required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if is_required and name not in values:
            raise ConfigError(f"{where}: the key {name!r} is missing")
    return cls(**{key: _checked(value, hints[key], f"{where}: {key}") for key, value in values.items()})


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known word, else the list of known ones."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _checked(value: Any, hint: Any, where: str) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        kind = typing.get_origin(option) or option
        if kind is Any or (kind is types.NoneType and value is None):
            return value
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is Path and isinstance(value, str):
            return Path(value).expanduser()
        if isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
    kinds = [typing.get_origin(option) or option for option in options if option is not types.NoneType]
    wanted = " or ".join(_WORDS.get(kind, str(getattr(kind, "__name__", kind))) for kind in kinds)
    raise ConfigError(f"{where}: expected {wanted}, found {value!r}")
