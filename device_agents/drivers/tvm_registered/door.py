"""Loopback port at which the workers of one device open sessions with its server.

A worker opens several sessions with one key. The server requires a new match key for each; the agent supplies it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets

from device_agents.drivers.tvm_registered.station import Station
from device_agents.runtimes.tvm_rpc.handshake import NotServed, accept_session, refusal, welcome

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
_SILENCE_SEC = 5.0
_CHUNK_BYTES = 256 * 1024


class SessionDoor:
    """Port of one device."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._listener: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None] | None] = set()
        self.port = 0
        self.key = secrets.token_hex(16)
        """Known to this agent and its workers only."""

    async def open(self) -> None:
        """Listen.

        Raises:
            OSError: no free port.
        """
        self._listener = await asyncio.start_server(self._serve, HOST, 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """End all sessions. Idempotent."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        sessions = [task for task in self._sessions if task is not None]
        for task in sessions:
            task.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._sessions.add(task)
        try:
            await self._carry(reader, writer)
        except (NotServed, TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            logger.info("session ended", extra={"server": self._station.address, "reason": str(error)})
        except asyncio.CancelledError:
            logger.debug("session ended with the agent")  # asyncio's own callback would log a traceback
        finally:
            self._sessions.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_SILENCE_SEC):
            key, _, options = (await accept_session(reader)).partition(" ")
        if not hmac.compare_digest(key.encode(), self.key.encode()):
            writer.write(refusal())
            return
        async with self._station.session(options) as (board_reader, board_writer):
            writer.write(welcome(self._station.server.key))
            await _pipe((reader, board_writer), (board_reader, writer))


async def _pipe(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Copy in both directions until one of them ends."""
    copies = [asyncio.create_task(_copy(*way), name="copy-session") for way in ways]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(_CHUNK_BYTES):
            writer.write(content)
            await writer.drain()
