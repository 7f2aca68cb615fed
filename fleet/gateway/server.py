"""The gateway: a tracker of TVM's protocol on the loopback, for stock clients of one account.

The protocol has neither users nor encryption, so it does not leave this machine. Connections of other users are closed
before a byte of them is read. Towards tracker and agents, the gateway is a client like any other: TLS and tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fleet.client.aio import Fleet
from fleet.client.device import Device
from fleet.domain.leases import LeaseClass, LeaseTerms, make_terms
from fleet.errors import ConfigError, FleetError
from fleet.gateway import greetings
from fleet.gateway.counts import GatewayCounts
from fleet.gateway.kept_leases import KeptLeases
from fleet.gateway.keys import KeySummary, selector_of, summarize, with_version
from fleet.gateway.peers import owner_of
from fleet.gateway.session import carry
from fleet.wire import tvm_frames as frames
from fleet.wire.tvm_frames import BrokenMessage, Code

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_SILENCE_SEC = 5.0
"""Time limit of a connection's first message."""

_UNUSED_SEC = 8.0
"""Time limit of a granted device's first use, as stock servers have it."""

_MAX_CONNECTIONS = 1_000
_MAX_KEYS = 1_000
"""Number of remembered keys of clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Settings of a gateway."""

    tvm_version: str
    """Version of TVM of the clients' environment: "0.27". Devices of other versions are not granted."""

    port: int = 9190
    """0: any free one."""

    lease_class: LeaseClass = LeaseClass.BATCH


@dataclass(frozen=True, slots=True)
class _Grant:
    """A device that waits for its session."""

    terms: LeaseTerms
    device: Device
    expiry: asyncio.TimerHandle


@asynccontextmanager
async def serve_gateway(
    client: Fleet, options: GatewayOptions, counts: GatewayCounts | None = None
) -> AsyncIterator[str]:
    """Serve inside the block; yield the address, "127.0.0.1:port".

    Raises:
        ConfigError: the port is in use.
    """
    gateway = Gateway(client, options, counts=counts)
    try:
        listener = await asyncio.start_server(gateway.serve, LOOPBACK, options.port, limit=frames.MOST_FRAME_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the gateway cannot listen on {LOOPBACK}:{options.port}: {error.strerror or error}; "
            "choose another port with --port"
        ) from error
    gateway.port = listener.sockets[0].getsockname()[1]
    try:
        yield f"{LOOPBACK}:{gateway.port}"
    finally:
        listener.close()
        await gateway.close()


class Gateway:
    """Serves connections of stock clients. Made by `serve_gateway`."""

    def __init__(
        self,
        client: Fleet,
        options: GatewayOptions,
        owner: Callable[[socket.socket], int | None] = owner_of,
        unused_sec: float = _UNUSED_SEC,
        counts: GatewayCounts | None = None,
    ) -> None:
        """Args:
        owner: returns the user id of a connection's other end.
        counts: kept up to date.
        """
        self.port = 0
        self._counts = counts or GatewayCounts()
        self._client = client
        self._options = options
        self._owner = owner
        self._unused_sec = unused_sec
        self._leases = KeptLeases(client)
        self._grants: dict[str, _Grant] = {}
        """Granted devices by match key, until their session begins."""

        self._keys: dict[str, None] = {}
        """Keys that clients asked for, oldest first."""

        self._connections: set[asyncio.Task[Any] | None] = set()

    async def close(self) -> None:
        """End all connections, and release all leases."""
        connections = [task for task in self._connections if task is not None]
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        for match_key in list(self._grants):
            self._expire(match_key)
        await self._leases.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, and close it."""
        task = asyncio.current_task()
        self._connections.add(task)
        self._counts.connections += 1
        try:
            if len(self._connections) <= _MAX_CONNECTIONS and self._is_own(writer.get_extra_info("socket")):
                await self._serve(reader, writer)
        except (BrokenMessage, TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            logger.debug("connection ended", extra={"reason": str(error)})
        except asyncio.CancelledError:
            logger.debug("connection ended with the gateway")  # asyncio's own callback would log a traceback
        except Exception:  # outermost edge of a connection: it must not end the gateway
            logger.exception("connection failed")
        finally:
            self._connections.discard(task)
            self._counts.connections -= 1
            writer.close()

    def _is_own(self, connection: socket.socket) -> bool:
        found = self._owner(connection)
        if found != os.getuid():
            logger.warning("closed a connection of another user", extra={"uid": found})
        return found == os.getuid()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SILENCE_SEC):
            magic = frames.INT.unpack(await _read_head(reader, writer))[0]
        _keep_alive(writer.get_extra_info("socket"))
        if magic == frames.TRACKER_MAGIC:
            writer.write(frames.INT.pack(magic))
            await self._serve_tracker(reader, writer)
        elif magic == greetings.SESSION_MAGIC:
            await self._serve_session(reader, writer)

    async def _serve_tracker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a client's messages in order. One that vanishes while it waits leaves the queue at once."""
        reading = asyncio.ensure_future(_read_frame(reader, writer))
        answering: asyncio.Task[bytes] | None = None
        try:
            while True:
                message = frames.parse_message(await reading)
                reading = asyncio.ensure_future(_read_frame(reader, writer))
                answering = asyncio.create_task(self._answer(message), name="gateway answer")
                await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and reading.exception() is not None:
                    return
                writer.write(await answering)
                await writer.drain()
        finally:
            for task in (reading, answering):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _answer(self, message: frames.Message) -> bytes:
        match message.code:
            case Code.PING | Code.UPDATE_INFO:
                return frames.success()
            case Code.SUMMARY:
                return frames.result(await self._summary())
            case Code.GET_PENDING_MATCHKEYS:
                return frames.format_frame([])
            case Code.REQUEST:
                request = frames.parse_request(message.arguments)
                try:
                    return frames.result(await self._grant(request))
                except FleetError as error:
                    self._counts.refusals[type(error).__name__] += 1
                    return frames.failure(str(error))
            case _:
                return frames.failure()

    async def _grant(self, request: frames.Request) -> list[object]:
        """Lease a device, and return the address and match key of its session."""
        devices = await self._client.devices()
        selector = selector_of(request.key, devices)
        self._keys[request.key] = None
        if len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        terms = make_terms(
            with_version(selector, self._options.tvm_version, devices),
            lease_class=self._options.lease_class,
            priority=request.priority,
            purpose="stock TVM client",
        )
        device = await self._leases.take(terms)
        match_key = f"fleet:{secrets.token_hex(16)}"
        expiry = asyncio.get_running_loop().call_later(self._unused_sec, self._expire, match_key)
        self._grants[match_key] = _Grant(terms, device, expiry)
        self._counts.grants += 1
        return [LOOPBACK, self.port, match_key]

    def _expire(self, match_key: str) -> None:
        grant = self._grants.pop(match_key)
        grant.expiry.cancel()
        self._leases.give_back(grant.terms, grant.device)

    async def _serve_session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SILENCE_SEC):
            length = greetings.greeting_length(await _read_head(reader, writer))
            greeting = greetings.parse_greeting(await reader.readexactly(length))
        grant = self._grants.pop(greeting.match_key, None)
        if grant is None:
            writer.write(greetings.mismatch_answer())
            await writer.drain()
            return
        grant.expiry.cancel()
        self._counts.sessions += 1
        try:
            await carry(reader, writer, grant.device, greeting.timeout_sec)
        finally:
            self._counts.sessions -= 1
            self._counts.ended_sessions += 1
            self._leases.give_back(grant.terms, grant.device)

    async def _summary(self) -> dict[str, object]:
        keys: dict[str, KeySummary] = summarize(await self._client.devices(), self._keys, self._leases.idle_names)
        waiting = {key: {"free": one.free, "pending": 0} for key, one in keys.items()}
        servers = [
            {"key": f"server:{key}", "addr": [LOOPBACK, self.port]}
            for key, one in keys.items()
            for _ in range(one.devices)
        ]
        return {"queue_info": waiting, "server_info": servers}


async def _read_frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    return await reader.readexactly(frames.frame_length(await _read_head(reader, writer)))


async def _read_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Read the first four bytes of a message, and acknowledge them without delay.

    Stock clients send the rest apart, and their kernel holds it back until then: 40 ms.
    """
    head = await reader.readexactly(4)
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
    return head


def _keep_alive(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
