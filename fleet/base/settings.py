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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from fleet.base.config import TRACKER_PORT, at_home, config_file, data_dir, did_you_mean, parse, read_yaml
from fleet.base.network import check_address
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
    """Place to correct: "--tracker", "$FLEET_TRACKER", the file. Empty for the default."""

    @property
    def asked(self) -> str | None:
        """The value that the user gave; None for the default."""
        return None if self.source is Source.DEFAULT else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFile:
    """The keys of config.yaml."""

    tracker: Annotated[str | None, "The tracker, host:port. Default: 127.0.0.1:9290."] = None
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
    given: tuple[tuple[Source, str, Callable[[], str | None]], ...] = (
        (Source.FLAG, _FLAGS[key], lambda: flag),
        (Source.ENVIRONMENT, f"${_VARIABLES[key]}", lambda: os.environ.get(_VARIABLES[key])),
        (Source.FILE, str(config_file()), lambda: _in_file().get(key)),
    )
    for source, where, read in given:
        value = read()
        if value:
            _check(key, value, where)
            return Setting(key=key, value=value, source=source, where=where)
        if value is not None:
            break
    return Setting(key=key, value=_default(key), source=Source.DEFAULT)


def _in_file() -> Mapping[str, str | None]:
    path = config_file()
    if not os.environ.get("FLEET_CONFIG") and not path.exists():
        return {}
    found = parse(ClientFile, read_yaml(path), where=str(path))
    library = found.library
    if library and "://" not in library:
        library = str(path.absolute().parent / at_home(library))
    return {"tracker": found.tracker, "library": library, "selector": found.selector, "format": found.format}


def _default(key: str) -> str:
    defaults = {"tracker": f"127.0.0.1:{TRACKER_PORT}", "selector": "cpu", "format": "table"}
    return defaults.get(key) or str(data_dir() / "library.sqlite")


def _check(key: str, value: str, where: str) -> None:
    """Refuse values that no command could use. Selectors and libraries are checked by their own modules."""
    if key == "tracker":
        check_address(value, "the tracker's address" + ("" if where == _FLAGS[key] else f" in {where}:"))
    if key == "format" and value not in FORMATS:
        raise ConfigError(f"{where}: format: there is no {value!r}{did_you_mean(value, FORMATS)}")
