"""Settings of one entry of the driver android; device_agents.android explains them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cross.boards import find_board
from device_agents.adb import Adb
from device_agents.android_facts import CORES
from device_agents.host import slug
from fleet.config import parse
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidConfig:
    """One phone, or all of them."""

    serial: str | None = None
    """None: all phones."""

    name: str | None = None
    device_type: str = "cpu"
    cores: str = "all"
    tvm_rpc_dir: Path | None = None
    target: str | dict[str, Any] | None = None
    library_path: list[str] = field(default_factory=list)
    adb: str = "adb"
    adb_server_port: int | None = None
    emulated: bool = False

    def server(self) -> Adb:
        """Return the adb that it names."""
        return Adb(program=self.adb, server_port=self.adb_server_port)


def parse_entry(values: Mapping[str, Any], where: str) -> AndroidConfig:
    """Read an entry.

    Raises:
        ConfigError: an unknown key or a bad value.
    """
    config = parse(AndroidConfig, values, where=where)
    if config.device_type not in ("cpu", "opencl"):
        raise ConfigError(f"{where}: device_type: expected cpu or opencl, found {config.device_type!r}")
    if config.cores not in CORES:
        raise ConfigError(f"{where}: cores: expected {', '.join(CORES)}, found {config.cores!r}")
    if config.serial is None and config.name is not None:
        raise ConfigError(f"{where}: name: is for one phone; give its 'serial' too (adb devices lists it)")
    if isinstance(config.target, str):
        find_board(config.target)
    return config


def device_id(config: AndroidConfig, host_name: str) -> str:
    """Return what the phone of an entry is called in the fleet."""
    return config.name or f"{host_name}-{slug(config.serial or '')}"[:63]
