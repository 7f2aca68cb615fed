"""Port where stock TVM RPC servers register, as with TVM's own tracker.

The protocol has neither users nor encryption. Connections from other networks than the configured ones are closed
before a byte is read, and a server's address must be in them, too: the agent connects to nothing else. Servers with
other keys are told that they are registered, so that they go on waiting, and are not served.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from device_agents.drivers.tvm_registered.config import Address, RegisteredKey, RegistrationConfig, plain_address
from device_agents.drivers.tvm_registered.offers import Offers, Put, Server, parse_put
from device_agents.drivers.tvm_registered.station import Station
from fleet.base.network import address_of, keep_alive
from fleet.errors import ConfigError
from fleet.wire import tvm_frames
from fleet.wire.tvm_frames import BrokenMessage, Code, Message
from fleet.wire.tvm_streams import read_frame, read_head

logger = logging.getLogger(__name__)

MOST_FRAME_BYTES = 8 * 1024
MOST_CONNECTIONS = 1_000
MOST_CONNECTIONS_OF_ADDRESS = 64
_SILENCE_SEC = 5.0
"""Time limit of a connection's first message; afterwards TCP keepalive finds lost peers."""

_HOST_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")
_NO_CLIENTS = "this port takes TVM RPC servers only; clients use fleet gateway"


class RegistrationPort:
    """Takes registrations, and keeps a station for each server."""

    def __init__(self, config: RegistrationConfig, appeared: Callable[[Station, RegisteredKey], None]) -> None:
        """Args: appeared: called with the station and settings of each server that registers for the first time."""
        self._config = config
        self._appeared = appeared
        self._listener: asyncio.Server | None = None
        self._offers = Offers({name: key.config.most for name, key in config.keys.items()}, config.entry_of)
        self._stations: dict[Server, Station] = {}
        self._connections: dict[int, asyncio.Task[Any] | None] = {}
        self._of_address: Counter[Address] = Counter()
        self._numbers = count(1)

    @property
    def address(self) -> str:
        """Address for registrations; empty unless open."""
        if self._listener is None:
            return ""
        return address_of(*self._listener.sockets[0].getsockname()[:2])

    async def open(self) -> None:
        """Listen.

        Raises:
            ConfigError: the port is in use, or the address belongs to another machine.
        """
        host, port = self._config.host, self._config.port
        try:
            self._listener = await asyncio.start_server(self._serve, host, port, limit=MOST_FRAME_BYTES)
        except OSError as error:
            shown = address_of(host, port)
            raise ConfigError(
                f"tvm_registered cannot listen on {shown}: {error.strerror or error}; choose another 'listen'"
            ) from error

    async def close(self) -> None:
        """End all connections. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        connections = [task for task in self._connections.values() if task is not None]
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, and close it."""
        connection, peer = next(self._numbers), _peer_of(writer)
        if peer is None or not self._admits(peer):
            writer.close()
            return
        self._connections[connection] = asyncio.current_task()
        self._of_address[peer] += 1
        try:
            await self._talk(connection, peer, reader, writer)
        except (BrokenMessage, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            logger.debug("connection ended", extra={"peer": str(peer), "reason": str(error)})
        except asyncio.CancelledError:
            logger.debug("connection ended with the agent")  # asyncio's own callback would log a traceback
        finally:
            self._of_address[peer] -= 1
            self._of_address += Counter()  # forgets addresses without connections
            del self._connections[connection]
            for server in self._offers.drop(connection):
                self._stations[server].lost()
            writer.close()

    def _admits(self, peer: Address) -> bool:
        if not self._config.admits(peer):
            logger.warning("closed a connection from a network that no key names", extra={"peer": str(peer)})
            return False
        if len(self._connections) >= MOST_CONNECTIONS or self._of_address[peer] >= MOST_CONNECTIONS_OF_ADDRESS:
            logger.warning("closed a connection, there are too many", extra={"peer": str(peer)})
            return False
        return True

    async def _talk(
        self, connection: int, peer: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(_SILENCE_SEC):
            magic = tvm_frames.INT.unpack(await read_head(reader, writer))[0]
        if magic != tvm_frames.TRACKER_MAGIC:
            raise BrokenMessage("another protocol")
        keep_alive(writer.get_extra_info("socket"))
        writer.write(tvm_frames.INT.pack(magic))
        while True:
            message = tvm_frames.parse_message(await read_frame(reader, writer, MOST_FRAME_BYTES))
            writer.write(self._answer(connection, peer, message))
            await writer.drain()

    def _answer(self, connection: int, peer: Address, message: Message) -> bytes:
        match message.code:
            case Code.PING | Code.UPDATE_INFO:
                return tvm_frames.success()
            case Code.PUT:
                self._take_offer(connection, peer, message)
                return tvm_frames.success()
            case Code.GET_PENDING_MATCHKEYS:
                return tvm_frames.format_frame(self._offers.pending(connection))
            case Code.REQUEST:
                return tvm_frames.failure(_NO_CLIENTS)
            case _:
                return tvm_frames.failure()

    def _take_offer(self, connection: int, peer: Address, message: Message) -> None:
        put = parse_put(message.arguments)
        key = self._config.settings_of(put.key)
        host = self._served_host(put, key, peer)
        if host is None:
            extra = {"key": put.key, "address": put.host, "peer": str(peer)}
            logger.warning("a server waits: agent.yaml names no such key for its address", extra=extra)
        server = self._offers.add(connection, put, host)
        if server is None or key is None:
            return
        station = self._stations.get(server)
        if station is None:
            station = self._stations[server] = Station(server, self._offers, key.admits)
            self._appeared(station, key)
        station.offered()

    def _served_host(self, put: Put, key: RegisteredKey | None, peer: Address) -> str | None:
        """Return the host of a server; None if its key is not served there.

        A host name is looked up and checked when a session is opened.
        """
        if key is None or not key.admits(peer):
            return None
        if not put.host:
            return str(peer)
        try:
            address = plain_address(put.host)
        except ValueError:
            return put.host if _HOST_NAME.fullmatch(put.host) else None
        return str(address) if key.admits(address) else None


def _peer_of(writer: asyncio.StreamWriter) -> Address | None:
    """Return the address of a connection's other end; None if it is gone already."""
    try:
        return plain_address(writer.get_extra_info("peername")[0])
    except (TypeError, IndexError, ValueError):
        return None
