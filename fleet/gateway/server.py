"""The gateway: a tracker of TVM's protocol for stock clients of one account.

The protocol has neither users nor encryption, so it usually does not leave this machine. Connections of other users are
closed before a byte of them is read. Only a gateway that is open to the network takes them, and grants nothing without
an access key. Towards tracker and agents, the gateway is a client like any other: TLS and tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fleet.base.network import address_of, keep_alive
from fleet.base.open_files import raise_file_limit
from fleet.client.aio import Fleet
from fleet.errors import ConfigError, NotAllowed
from fleet.gateway import greetings
from fleet.gateway.access_keys import AccessKeys
from fleet.gateway.connections import Connections
from fleet.gateway.counts import GatewayCounts
from fleet.gateway.grants import Grants
from fleet.gateway.kept_leases import KEPT_SEC, KeptLeases
from fleet.gateway.options import GatewayOptions
from fleet.gateway.peers import PeerSocket, peer_of
from fleet.gateway.registrations import hand_on, is_of_server
from fleet.gateway.requests import Caller, Requests
from fleet.gateway.revocations import Revocations
from fleet.gateway.session import carry, fail
from fleet.wire import tvm_frames as frames
from fleet.wire.tvm_streams import read_frame, read_head

logger = logging.getLogger(__name__)

_SILENCE_SEC = 5.0
"""Time limit of a connection's first message."""

_UNUSED_SEC = 8.0
"""Time limit of a granted device's first use, as stock servers have it."""


@asynccontextmanager
async def serve_gateway(
    client: Fleet, options: GatewayOptions, counts: GatewayCounts | None = None
) -> AsyncIterator[str]:
    """Serve inside the block; yield the address, "127.0.0.1:port".

    Raises:
        ConfigError: the options are invalid, or the port is in use.
    """
    options.check()
    raise_file_limit()
    gateway = Gateway(client, options, counts=counts)
    host = options.listening_host
    try:
        listener = await asyncio.start_server(gateway.serve, host, options.port, limit=frames.MOST_FRAME_BYTES)
    except OSError as error:
        raise ConfigError(
            f"the gateway cannot listen on {host}:{options.port}: {error.strerror or error}; choose another port"
        ) from error
    try:
        yield address_of(host, listener.sockets[0].getsockname()[1])
    finally:
        listener.close()
        await gateway.close()


class Gateway:
    """Serves connections of stock clients. Made by `serve_gateway`."""

    def __init__(
        self,
        client: Fleet,
        options: GatewayOptions,
        find_peer: Callable[[socket.socket], PeerSocket | None] = peer_of,
        unused_sec: float = _UNUSED_SEC,
        kept_sec: float = KEPT_SEC,
        counts: GatewayCounts | None = None,
    ) -> None:
        """Args:
        find_peer: returns the socket at a connection's other end, if it is on this machine.
        counts: kept up to date.
        """
        self._counts = counts or GatewayCounts()
        self._find_peer = find_peer
        self._is_open_to_network = options.is_open_to_network
        self._registrations = options.registrations
        self._leases = KeptLeases(client, kept_sec)
        self._grants = Grants(self._leases, unused_sec)
        keys = AccessKeys(options.directory)
        self._revocations = Revocations(keys)
        self._requests = Requests(client, options, self._leases, self._grants, self._counts, keys, self._revocations)
        self._connections = Connections(self._counts)

    async def close(self) -> None:
        """End all connections, and release all leases."""
        await self._connections.close()
        await self._revocations.close()
        self._grants.close()
        await self._leases.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, and close it."""
        peer = self._find_peer(writer.get_extra_info("socket"))
        is_own = peer is not None and peer.uid == os.getuid()
        if not is_own and not self._is_open_to_network:
            logger.warning("closed a connection of another user", extra={"uid": peer.uid if peer else None})
            writer.close()
            return
        await self._connections.serve(writer, self._serve(reader, writer, peer if is_own else None))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, own: PeerSocket | None) -> None:
        """Args:
        own: the other end if it belongs to this user.
        """
        async with asyncio.timeout(_SILENCE_SEC):
            magic = frames.INT.unpack(await read_head(reader, writer))[0]
        self._connections.note_speaking()
        keep_alive(writer.get_extra_info("socket"))
        if magic == frames.TRACKER_MAGIC:
            writer.write(frames.INT.pack(magic))
            content = await read_frame(reader, writer)
            if self._registrations and own is not None and is_of_server(frames.parse_message(content)):
                await hand_on(self._registrations, content, reader, writer)
            else:
                await self._serve_tracker(reader, writer, _caller(writer, own), content)
        elif magic == greetings.SESSION_MAGIC:
            await self._serve_session(reader, writer)

    async def _serve_tracker(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, caller: Caller, content: bytes
    ) -> None:
        """Answer a client's messages in order. One that vanishes while it waits leaves the queue at once.

        Args:
            content: its first message.
        """
        reading: asyncio.Future[bytes] | None = None
        answering: asyncio.Task[bytes] | None = None
        try:
            while True:
                message = frames.parse_message(content)
                reading = asyncio.ensure_future(read_frame(reader, writer))
                answering = asyncio.create_task(self._requests.answer(message, caller), name="gateway answer")
                await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done() and reading.exception() is not None:
                    return
                writer.write(await answering)
                await writer.drain()
                content = await reading
        finally:
            for task in (reading, answering):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _serve_session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SILENCE_SEC):
            greeting = greetings.parse_greeting(await read_frame(reader, writer, greetings.MOST_GREETING_BYTES))
        grant = self._grants.take(greeting.match_key, writer.get_extra_info("peername")[0])
        if grant is None:
            writer.write(greetings.mismatch_answer())
            await writer.drain()
            return
        self._counts.sessions += 1
        use = contextlib.ExitStack()
        use.callback(self._grants.give_back, grant)
        try:
            async with self._revocations.watching(grant.key_id):
                # The agent serves a device's sessions in turn, so the next one may begin while the worker ends.
                await carry(reader, writer, grant.device, greeting.timeout_sec, on_client_end=use.close)
        except NotAllowed as error:
            await fail(writer, str(error))
        finally:
            self._counts.sessions -= 1
            self._counts.ended_sessions += 1
            use.close()


def _caller(writer: asyncio.StreamWriter, own: PeerSocket | None) -> Caller:
    here, there = writer.get_extra_info("sockname"), writer.get_extra_info("peername")
    return Caller(own=own, host=there[0], reached_at=(here[0], here[1]))
