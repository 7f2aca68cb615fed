"""Configuration of an agent, agent.yaml. Every key is optional; without a file the agent serves all found devices.

devices:                          # default: all that the drivers find; at least one cpu device named <host>-cpu
  - driver: cpu
    name: bench-01                # devices/bench-01; default <host>-<driver>
    labels: {rack: 3}             # matched by selectors, beside the found ones
    facts: {bought: 2026-03}      # kept with every record
  - driver: simulated
    count: 4                      # bench-sim-0 .. bench-sim-3
    name: bench-sim
tracker: 10.0.0.5:9290            # default: 127.0.0.1:9290
advertise_address: 10.0.0.7:9291  # where clients reach the data path; default: the agent's listening address
relay: relay.example.org:9292     # leads clients to an agent that they cannot reach; default: none
cache_max_bytes: 2147483648       # artifacts kept on this machine; default: an eighth of the disk, 2 to 16 GiB
memory_limit_bytes: 1073741824    # of one worker and its children; default: half of the machine
disk_limit_bytes: 1073741824      # of one worker's directory
jail: auto                        # isolation of workers: all layers of this machine; required; none
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from device_agents.driver import MAX_DEVICES, DeviceFinder, Driver
from device_agents.owner_labels import LabellingFinder, OwnerLabels, split_owner_labels, with_owner_labels
from device_agents.registry import find_devices, known_drivers, load_driver
from device_agents.serving.missing import MissingDevice
from fleet.base.config import Key, keys_of, parse, shown
from fleet.base.network import check_address, check_addresses
from fleet.base.source_locations import at, at_key
from fleet.errors import ConfigError, DeviceError, DeviceMissing, FleetError

logger = logging.getLogger(__name__)

_GIB = 1024**3
_LEAST_BYTES = {"memory_limit_bytes": 64 * 1024**2, "disk_limit_bytes": 1024**2}
"""Minimum by setting [bytes]. No worker starts with less, so every measurement would fail."""
JAILS = ("auto", "required", "none")
_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """agent.yaml; see the module's docstring."""

    devices: Annotated[
        list[dict[str, object]] | None,
        "What to serve: entries with 'driver' and its settings; default: all that the drivers find.",
    ] = None
    tracker: Annotated[
        str | None, "Where to attach, host:port; several with commas between them; default: 127.0.0.1:9290."
    ] = None
    advertise_address: Annotated[
        str | None,
        "Where clients reach the data path, host:port; default: the address that the agent listens on.",
    ] = None
    relay: Annotated[
        str | None,
        "A relay that leads clients to this agent if they cannot reach it, host:port; default: none.",
    ] = None
    cache_max_bytes: Annotated[
        int | None,
        "Total size of the artifacts kept on this machine [bytes]; default: an eighth of the disk, from 2 to 16 GiB.",
    ] = None
    memory_limit_bytes: Annotated[
        int | None,
        "Memory of one worker and its children [bytes]; default: half of the machine's.",
    ] = None
    disk_limit_bytes: Annotated[int, "Largest size of one worker's directory [bytes]."] = _GIB
    jail: Annotated[
        str,
        "What workers are kept in: auto (all the layers that this machine has), required (auto, but the agent does not "
        "start without namespaces), none (limits only).",
    ] = "auto"


def parse_config(values: Mapping[str, object], *, where: str = "agent.yaml") -> AgentConfig:
    """Check the content of agent.yaml.

    Raises:
        ConfigError: an unknown key (the nearest is named) or a bad value; the message names the line if `where` is a
            `SourceLocation`.
    """
    config = parse(AgentConfig, values, where=where)
    for key in ("cache_max_bytes", "memory_limit_bytes", "disk_limit_bytes"):
        value = getattr(config, key)
        if value is not None and value <= 0:
            raise ConfigError(f"{at(where, key)}: expected a number above zero, found {value}")
    for key, least in _LEAST_BYTES.items():
        value = getattr(config, key)
        if value is not None and value < least:
            raise ConfigError(f"{at(where, key)}: {value} bytes, a worker needs at least {least}")
    if config.jail not in JAILS:
        raise ConfigError(f"{at(where, 'jail')}: expected {', '.join(JAILS)}, found {config.jail!r}")
    if config.tracker is not None:
        check_addresses(config.tracker, f"{at(where, 'tracker')}:")
    if config.advertise_address is not None:
        check_address(config.advertise_address, f"{at(where, 'advertise_address')}:")
    if config.relay is not None:
        check_address(config.relay, f"{at(where, 'relay')}:")
    if config.devices is not None and not config.devices:
        remedy = "name at least one, or leave the key out to serve the devices found on this machine"
        raise ConfigError(f"{at(where, 'devices')}: {remedy}")
    return config


def make_drivers(config: AgentConfig, *, where: str = "agent.yaml", host_name: str | None = None) -> list[Driver]:
    """Make the drivers of all configured devices, not yet open.

    Hardware that is missing has a `MissingDevice` in its place, as long as another entry has its own.

    Raises:
        ConfigError: an unknown driver or key, a bad name, or two devices of one name; or nothing of it is here.
    """
    host_name = host_name or short_host_name()
    drivers: list[Driver] = []
    places: list[str] = []
    """Places of the entries that the drivers are of."""
    missing: list[FleetError] = []
    entries = find_devices() if config.devices is None else config.devices
    for index, entry in enumerate(entries):
        place = at(where, "devices", index)
        look = partial(_drivers_of_entry, entry, place, host_name)
        try:
            drivers.extend(look())
        except (DeviceMissing, DeviceError) as error:
            missing.append(error)
            taken = {driver.device_id for driver in drivers}
            drivers.append(
                MissingDevice.of_entry(entry, error, where=place, look=look, host_name=host_name, taken=taken)
            )
        places.extend([place] * (len(drivers) - len(places)))
    if missing and len(missing) == len(entries):
        raise missing[0]
    if len(drivers) > MAX_DEVICES:
        raise ConfigError(f"{at(where, 'devices')}: {len(drivers)} of them, an agent serves at most {MAX_DEVICES}")
    for absence in missing:
        logger.warning("a device is missing", extra={"error": str(absence)})
    seen: set[str] = set()
    for driver, place in zip(drivers, places, strict=True):
        name, named = shown(driver.device_id), at_key(place, "name")
        if not _DEVICE_ID.fullmatch(driver.device_id):
            raise ConfigError(f"{named}: {name} is no device name; use letters, digits, '.', '_' and '-', at most 63")
        if driver.device_id in seen:
            raise ConfigError(f"{named}: two devices are named {name}; give one of them another 'name'")
        seen.add(driver.device_id)
    return drivers


def make_finders(config: AgentConfig) -> list[DeviceFinder]:
    """Make the finders of devices that appear while the agent runs.

    Raises:
        ConfigError: as `make_drivers`.
    """
    finders: list[DeviceFinder] = []
    for index, entry in enumerate(find_devices(only_finders=True) if config.devices is None else config.devices):
        place = at("agent.yaml", "devices", index)
        driver, values, given = _driver_of_entry(entry, place)
        finder = driver.finder(values, where=place, host_name=short_host_name())
        if finder is not None:
            finders.append(LabellingFinder(finder, given))
    return finders


def known_keys() -> dict[str, list[Key]]:
    """Return the keys that an entry may have besides 'driver', by the name of the installed driver."""
    return {name: keys_of(load_driver(name, where="known keys").settings) for name in known_drivers()}


def short_host_name() -> str:
    """Return this machine's name in the form of a device name."""
    name = socket.gethostname().partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:48].strip(".-_") or "host"


def _drivers_of_entry(entry: object, where: str, host_name: str) -> list[Driver]:
    driver, values, given = _driver_of_entry(entry, where)
    devices = driver.from_config(values, where=where, host_name=host_name)
    for device in devices:
        device.place = where
    return [with_owner_labels(device, given) for device in devices]


def _driver_of_entry(entry: object, where: str) -> tuple[type[Driver], dict[str, object], OwnerLabels]:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: expected 'driver: NAME' and its settings, found {shown(entry)}")
    name = entry.get("driver")
    if not isinstance(name, str):
        raise ConfigError(f"{where}: the key 'driver' is missing")
    driver = load_driver(name, where=at_key(where, "driver"))
    own_keys = {key.name for key in keys_of(driver.settings)}
    given, values = split_owner_labels(
        {key: value for key, value in entry.items() if key != "driver"}, where, own_keys=own_keys
    )
    return driver, values, given
