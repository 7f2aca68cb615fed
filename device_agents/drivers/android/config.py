"""Settings of one entry of the driver android, explained in device_agents.drivers.android.driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cross.targets.boards import find_board
from device_agents.drivers.android.adb import Adb
from device_agents.drivers.android.facts import CORES
from device_agents.machine.host import slug
from fleet.base.config import parse
from fleet.base.source_locations import at, named_in_errors
from fleet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AndroidConfig:
    """Settings of one phone, or of all phones."""

    serial: Annotated[
        str | None,
        "The phone, as `adb devices` lists it; default: all, also those plugged in later.",
    ] = None
    name: Annotated[str | None, "Id of the device; default: <host>-<serial>. Only with serial."] = None
    device_type: Annotated[str, "cpu or opencl; opencl needs libtvm_runtime_opencl.so, too."] = "cpu"
    cores: Annotated[str, "What CPU kernels run on: all, big or little."] = "all"
    tvm_rpc_dir: Annotated[
        Path | None,
        "Folder of tvm_rpc and its libraries for the phone; default: ~/.local/share/tvm-fleet/android/<ABI>.",
    ] = None
    target: Annotated[
        str | dict[str, object] | None,
        "A board of `fleet targets`, or a TVM target; default: by what the phone is.",
    ] = None
    library_path: Annotated[
        list[str],
        "Folders of the phone before ours; default: /vendor/lib64 for opencl, else nothing.",
    ] = field(default_factory=list)
    adb: Annotated[str, "The program; default: adb on PATH."] = "adb"
    adb_server_port: Annotated[int | None, "Port of adb's server; default: adb's own."] = None
    emulated: Annotated[bool, "True: its times are never stored as a board's."] = False

    def server(self) -> Adb:
        """Return the adb to use."""
        return Adb(program=self.adb, server_port=self.adb_server_port)


def parse_entry(values: Mapping[str, object], where: str) -> AndroidConfig:
    """Read an entry.

    Raises:
        ConfigError: an unknown key or a bad value.
    """
    config = parse(AndroidConfig, values, where=where)
    if config.device_type not in ("cpu", "opencl"):
        raise ConfigError(f"{at(where, 'device_type')}: expected cpu or opencl, found {config.device_type!r}")
    if config.cores not in CORES:
        raise ConfigError(f"{at(where, 'cores')}: expected {', '.join(CORES)}, found {config.cores!r}")
    if config.serial is None and config.name is not None:
        remedy = "give its 'serial' too (adb devices lists it)"
        raise ConfigError(f"{at(where, 'name')}: is for one phone; {remedy}")
    if isinstance(config.target, str):
        with named_in_errors(at(where, "target")):
            find_board(config.target)
    return config


def device_id(config: AndroidConfig, host_name: str) -> str:
    """Return the device id of an entry's phone."""
    return config.name or f"{host_name}-{slug(config.serial or '')}"[:63]
