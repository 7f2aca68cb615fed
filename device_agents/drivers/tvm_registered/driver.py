"""Driver for boards whose stock TVM RPC servers register with the agent, as they would with TVM's tracker.

    devices:
      - driver: tvm_registered
        listen: 10.1.0.1:9190      # on the boards' own wire: TVM's protocol has neither users nor encryption
        keys:                      # as the servers are started with
          rpi4:
            target: rpi4-64        # as in tvm_rpc, as are device_type, device_index, memory_mb, session_sec, emulated
            from: 10.1.0.0/24      # networks of these boards; default: the /24 (IPv6: /64) around `listen`
          pixel:
            target: adreno-6xx
            device_type: opencl
            most: 16               # servers of this key; a tracker takes 64 names of one agent by default
            tvm: "0.27"            # version on the boards; default: the agent's, and no other is taken
        name: lab                  # prefix of the devices' ids; default: none

Start a board's server with `python -m tvm.exec.rpc_server --tracker 10.1.0.1:9190 --key rpi4`, as `tvm_rpc server
--tracker=10.1.0.1:9190 --key=rpi4`, by TVM's Android app, or behind TVM's RPC proxy. It becomes the device
devices/rpi4-10.1.0.7-9090, by key, address and port, over reboots, too: start it with a port of its own. Servers with
other keys wait, with a line in the agent's log, unless settings of the key "*" admit them. A server is never probed: it
counts as free as long as it is registered, until a session fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from device_agents.driver import Driver, Health, StraySweeper, WorkerSpec
from device_agents.drivers.rpc_board import RpcBoardDriver
from device_agents.drivers.tvm_registered.config import (
    RegisteredKey,
    RegistrationConfig,
    TvmRegisteredConfig,
    parse_entry,
    plain_address,
)
from device_agents.drivers.tvm_registered.door import HOST, SessionDoor
from device_agents.drivers.tvm_registered.offers import Server
from device_agents.drivers.tvm_registered.port import RegistrationPort
from device_agents.drivers.tvm_registered.station import Station
from fleet.domain.devices import Inventory
from fleet.errors import DeviceError, DeviceUnreachable

_MOST_ID_CHARS = 63
_DIGEST_CHARS = 12


class TvmRegisteredDriver(RpcBoardDriver):
    """Device behind a registered server."""

    kind = "tvm_registered"
    settings = TvmRegisteredConfig
    has_finder = True

    def __init__(self, device_id: str, key: RegisteredKey, host_name: str, station: Station) -> None:
        super().__init__(device_id, key.config, host_name, key.what, address=station.address)
        self._station = station
        station.noticed = self._notice
        self._door = SessionDoor(station)

    @classmethod
    def from_config(cls, values: Mapping[str, object], *, where: str, host_name: str) -> list[Self]:
        """Check the entry. Its devices come when their servers register."""
        parse_entry(values, where)
        return []

    @classmethod
    def finder(cls, values: Mapping[str, object], *, where: str, host_name: str) -> ServerFinder:
        return ServerFinder(parse_entry(values, where), host_name)

    async def open(self, sweeper: StraySweeper) -> None:
        """Listen for the device's workers."""
        await super().open(sweeper)
        try:
            await self._door.open()
        except OSError as error:
            self._state = "new"
            raise DeviceError(f"{self.name}: no port for its workers: {error}") from error

    async def prepare(self) -> None:
        """Wait until the server has registered again after the last worker's session."""
        self._check_open()
        if not await self._station.ready():
            raise DeviceUnreachable(f"{self.name}: {self._station.trouble}")

    async def close(self) -> None:
        await super().close()
        await self._door.close()

    def _probe(self) -> Health:
        trouble = self._station.trouble
        return Health(is_healthy=not trouble, reason=trouble)

    def _inventory(self) -> Inventory:
        inventory, key = super()._inventory(), self._station.server.key
        return replace(inventory, labels={"tvm_key": key, **inventory.labels}, facts={**inventory.facts, "key": key})

    def _notice(self) -> None:
        self.noticed()

    def _worker_spec(self) -> WorkerSpec:
        return self._spec_for(HOST, self._door.port, self._door.key)


class ServerFinder:
    """Makes a driver for each server that registers for the first time."""

    preload = TvmRegisteredDriver.preload

    def __init__(self, config: RegistrationConfig, host_name: str) -> None:
        self._config = config
        self._host_name = host_name
        self._port = RegistrationPort(config, self._take)
        self._fresh: list[Driver] = []
        self._news = asyncio.Event()

    @property
    def address(self) -> str:
        """Address for registrations; empty until `look` was called."""
        return self._port.address

    async def look(self) -> list[Driver]:
        """Return drivers for new servers. The first call begins to listen."""
        if not self._port.address:
            await self._port.open()
        fresh, self._fresh = self._fresh, []
        self._news.clear()
        return fresh

    async def wait(self) -> None:
        """Wait until a new server registers."""
        await self._news.wait()

    async def close(self) -> None:
        await self._port.close()

    def _take(self, station: Station, key: RegisteredKey) -> None:
        name = device_id(station.server, self._config.prefix)
        self._fresh.append(TvmRegisteredDriver(name, key, self._host_name, station))
        self._news.set()


def device_id(server: Server, prefix: str) -> str:
    """Return the id of a server's device: the same after every start of server and agent."""
    try:
        host = re.sub(r"[:%]", "-", plain_address(server.host).exploded)
    except ValueError:
        host = server.host
    number = "" if server.number == 1 else f"-{server.number}"
    name = f"{prefix}{server.key}-{host}-{server.port}{number}"
    if len(name) <= _MOST_ID_CHARS and ":" not in name:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{name[: _MOST_ID_CHARS - _DIGEST_CHARS - 1].replace(':', '-')}-{digest}"
