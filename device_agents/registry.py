"""Finds drivers by name: entry points of the group "fleet.drivers", loaded only when configured."""

from __future__ import annotations

from importlib.metadata import entry_points

from device_agents.driver import Driver
from fleet.config import nearest
from fleet.errors import ConfigError

GROUP = "fleet.drivers"
_BUILT_IN = {"cpu": "device_agents.cpu:CpuDriver", "simulated": "device_agents.simulated:SimulatedDriver"}
"""Known even where the package's metadata is missing, as in a plain copy on a board."""


def known_drivers() -> list[str]:
    """Return the names of all drivers that are installed."""
    return sorted({entry.name for entry in entry_points(group=GROUP)} | set(_BUILT_IN))


def load_driver(name: str, *, where: str) -> type[Driver]:
    """Return the driver class registered as `name`.

    Raises:
        ConfigError: there is none of that name, or its module cannot be imported here.
    """
    found = {entry.name: entry.value for entry in entry_points(group=GROUP)}
    value = found.get(name, _BUILT_IN.get(name))
    if value is None:
        known = known_drivers()
        raise ConfigError(f"{where}: unknown driver {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    module_name, _, class_name = value.partition(":")
    try:
        module = __import__(module_name, fromlist=[class_name])
    except ImportError as error:
        raise ConfigError(f"{where}: the driver {name!r} cannot be loaded: {error}") from error
    driver: type[Driver] = getattr(module, class_name)
    return driver
