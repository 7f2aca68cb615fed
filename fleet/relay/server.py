"""The relay: joins connections of clients to agents that no client can reach, by the server name in the ClientHello.

One port takes three kinds of connections, told apart by their first bytes:

- of an agent that registers, for the relay's own name: it reaches the gRPC service behind the port;
- of a client, for an agent's name: the agent is notified, with the client's ClientHello;
- of an agent for a waiting client, with a one-time secret: it is joined to the client's connection.

TLS between client and agent is end to end. The relay reads the name, and nothing after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fleet.base.network import address_of
from fleet.base.open_files import file_limit, raise_file_limit
from fleet.base.sockets import Joiner, connect_socket, tune
from fleet.errors import ConfigError
from fleet.identity.credentials import Credentials
from fleet.relay.agents import Agents
from fleet.relay.counts import RelayCounts
from fleet.relay.opening import OfAgent, Opening, ToAgent, read_opening
from fleet.relay.options import RelayOptions
from fleet.relay.places import Places, RelayLimits, Silent
from fleet.relay.refusal import Refusal, Refused
from fleet.relay.service import RelayServicer
from fleet.wire import rpc
from fleet.wire.connections import network_of
from fleet.wire.options import HANDSHAKE_SEC, RESERVED_FILES
from fleet.wire.peers import Guard, server_security
from fleet.wire.stubs import add_relay_service

logger = logging.getLogger(__name__)

_SERVICE_HOST = "127.0.0.1"
_FILES_EACH = 3
"""File descriptors of one connection, at most: its own and both ends of its connection to the service."""

_BACKLOG = 1_024
_NO_FILES_SEC = 0.1
"""Pause after a failed accept, as without a free file descriptor."""

_STOP_GRACE_SEC = 0.5


@asynccontextmanager
async def serve_relay(
    options: RelayOptions,
    credentials: Callable[[], Credentials],
    guard: Guard,
    counts: RelayCounts | None = None,
    limits: RelayLimits | None = None,
) -> AsyncIterator[str]:
    """Serve inside the block; yield the address, "host:port".

    Args:
        credentials: returns those of this account in its fleet; agents check that they are a user's.
        guard: authenticates agents.
        counts: kept up to date.

    Raises:
        ConfigError: the options are invalid, or the port is in use.
    """
    options.check()
    raise_file_limit()
    agents, counts = Agents(), counts or RelayCounts()
    server = rpc.make_server(rpc.MAX_REQUEST_BYTES)
    add_relay_service(server, RelayServicer(agents, counts), guard)
    port = rpc.bind(server, _SERVICE_HOST, 0, server_security(credentials), what="the relay's service")
    watching = guard.connections.watch(port)
    await server.start()
    relay = Relay(agents, port, limits or _usual_limits(), counts)
    try:
        with _listen(options.listening_host, options.port) as listener:
            accepting = asyncio.create_task(relay.accept(listener), name="accept connections")
            try:
                yield address_of(options.listening_host, listener.getsockname()[1])
            finally:
                accepting.cancel()
                await asyncio.wait([accepting])
                await relay.close()
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await server.stop(_STOP_GRACE_SEC)


def _usual_limits() -> RelayLimits:
    """Return the limits that fit this process's limit of open files."""
    most = max(file_limit() - RESERVED_FILES, RESERVED_FILES) // _FILES_EACH
    return RelayLimits(total=min(RelayLimits().total, most))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"the relay cannot listen on {host}:{port}: {error.strerror or error}; choose another port with --port"
        ) from error
    listener.setblocking(False)
    return listener


class Relay:
    """Serves connections. Made by `serve_relay`."""

    def __init__(self, agents: Agents, service_port: int, limits: RelayLimits, counts: RelayCounts) -> None:
        """Args: service_port: of the gRPC service on this machine. counts: kept up to date."""
        self._agents = agents
        self._service_port = service_port
        self._places = Places(limits)
        self._silent = Silent[asyncio.Task[None]](limits)
        self._counts = counts
        self._joiner = Joiner()
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, listener: socket.socket) -> None:
        """Serve all connections of a listening socket until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:
                logger.warning("cannot accept connections", extra={"reason": str(error)})
                await asyncio.sleep(_NO_FILES_SEC)
                continue
            source = network_of(peer[0])
            task = asyncio.create_task(self._serve(connection, source), name="relay connection")
            self._tasks.add(task)
            task.add_done_callback(self._forget)
            if (evicted := self._silent.add(task, source)) is not None:
                evicted.cancel()

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._silent.remove(task)

    async def _serve(self, connection: socket.socket, source: str) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                with self._places.connection(source):
                    self._counts.connections = self._places.count()
                    await self._route(connection, source, stack)
            except Refused as refused:
                self._counts.refusals[refused.reason] += 1
            except OSError as error:
                logger.debug("connection ended", extra={"reason": str(error)})
            except Exception:  # outermost edge of a connection: it must not end the relay
                logger.exception("connection failed")
            finally:
                self._counts.connections = self._places.count()

    async def _route(self, connection: socket.socket, source: str, owner: contextlib.ExitStack) -> None:
        """Args: owner: closes the connection, unless it is handed on."""
        opening = await self._opening(connection)
        tune(connection)
        match opening:
            case OfAgent():
                self._agents.deliver(opening.secret, connection)
                owner.pop_all()
            case ToAgent():
                with self._places.client(source, opening.key_id):
                    await self._join_to_agent(connection, opening)
            case _:
                with await connect_socket(_SERVICE_HOST, self._service_port) as service:
                    await asyncio.get_running_loop().sock_sendall(service, opening.first_bytes)
                    await self._joiner.join(connection, service)

    async def _opening(self, connection: socket.socket) -> Opening:
        task = asyncio.current_task()
        try:
            async with asyncio.timeout(HANDSHAKE_SEC):
                return await read_opening(connection)
        except TimeoutError:
            raise Refused(Refusal.MALFORMED) from None
        finally:
            if task is not None:
                self._silent.remove(task)

    async def _join_to_agent(self, connection: socket.socket, opening: ToAgent) -> None:
        with await self._agents.connection_to(opening.key_id, opening.first_bytes) as of_agent:
            self._counts.clients += 1
            try:
                await self._joiner.join(connection, of_agent, self._note_carried)
            finally:
                self._counts.clients -= 1
                self._counts.ended_clients += 1

    def _note_carried(self, size_bytes: int) -> None:
        self._counts.carried_bytes += size_bytes
