"""Defaults of clients: tracker, library, devices and format.

One order for all of them, here and nowhere else: the flag, the environment, the file, the default. An empty value of a
flag or a variable means the default, too: `--tracker ''` is this machine's tracker, whatever the file says.

    # ~/.config/tvm-fleet/config.yaml
    tracker: lab.example.org:9290
    library: postgresql://db/fleet
    selector: kind=cpu,arch=aarch64
    format: json

The file is read at each look, and only then: a flag makes a readable file unnecessary.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fleet.base.config import TRACKER_PORT, at_home, config_file, data_dir, did_you_mean, parse, read_yaml
from fleet.base.network import check_addresses
from fleet.base.source_locations import at_key, named_in_errors
from fleet.errors import ConfigError

FORMATS = ("table", "json")


class Source(StrEnum):
    """Source of a value."""

    FLAG = "flag"
    ENVIRONMENT = "environment"
    FILE = "file"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and its source."""

    key: str
    value: str
    source: Source
    where: str = ""
    """Place to correct: "--tracker", "$FLEET_TRACKER", "/home/ann/.config/tvm-fleet/config.yaml: line 1". Empty for the
    default."""

    @property
    def asked(self) -> str | None:
        """The value that the user gave; None for the default."""
        return None if self.source is Source.DEFAULT else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """The keys of config.yaml."""

    tracker: Annotated[
        str | None, "The tracker, host:port; several with commas between them. Default: 127.0.0.1:9290."
    ] = None
    library: Annotated[
        str | None,
        "Where records go: a SQLite file (seen from this file's folder), or postgresql://host/database. "
        "Default: library.sqlite in the data directory.",
    ] = None
    selector: Annotated[str | None, "Which device commands use that are given no `--on`. Default: cpu."] = None
    format: Annotated[str | None, "How data is printed: table or json. Default: table."] = None


_VARIABLES = {
    "tracker": "FLEET_TRACKER",
    "library": "FLEET_LIBRARY",
    "selector": "FLEET_SELECTOR",
    "format": "FLEET_FORMAT",
}
_FLAGS = {"tracker": "--tracker", "library": "--library", "selector": "--on", "format": "--format"}

KEYS = tuple(_VARIABLES)


def look_up(key: str, flag: str | None = None) -> Setting:
    """Return the effective value of one of `KEYS`, given its flag.

    Raises:
        ConfigError: the value, or the file, is invalid; the text names its place.
    """
    given: tuple[tuple[Source, Callable[[], tuple[str | None, str]]], ...] = (
        (Source.FLAG, lambda: (flag, _FLAGS[key])),
        (Source.ENVIRONMENT, lambda: (os.environ.get(_VARIABLES[key]), f"${_VARIABLES[key]}")),
        (Source.FILE, lambda: _in_file(key)),
    )
    for source, read in given:
        value, where = read()
        if value:
            _check(key, value, where)
            return Setting(key=key, value=value, source=source, where=where)
        if value is not None:
            break
    return Setting(key=key, value=_default(key), source=Source.DEFAULT)


def _in_file(key: str) -> tuple[str | None, str]:
    """Return a value of the file, and its place; None without the file or the key."""
    path = config_file()
    if not os.environ.get("FLEET_CONFIG") and not path.exists():
        return None, str(path)
    values, place = read_yaml(path)
    value: str | None = getattr(parse(ClientFile, values, where=place), key)
    where = str(at_key(place, key))
    if key == "library" and value and "://" not in value:
        with named_in_errors(where):
            value = str(path.absolute().parent / at_home(value))
    return value, where


def _default(key: str) -> str:
    defaults = {"tracker": f"127.0.0.1:{TRACKER_PORT}", "selector": "cpu", "format": "table"}
    return defaults.get(key) or str(data_dir() / "library.sqlite")


def _check(key: str, value: str, where: str) -> None:
    """Refuse values that no command could use. Selectors and libraries are checked by their own modules."""
    if key == "tracker":
        check_addresses(value, "the tracker's address" + ("" if where == _FLAGS[key] else f" in {where}:"))
    if key == "format" and value not in FORMATS:
        raise ConfigError(f"{where}: format: there is no {value!r}{did_you_mean(value, FORMATS)}")
