"""Sockets on an event loop: connecting, and joining two connections.

A joined connection buffers at most one read in this process for each direction. The next read waits until it is sent,
so a receiver that does not read slows its sender down.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import cast

READ_BYTES = 128 * 1024
"""Most bytes that a joined connection buffers for a direction."""

_CONNECT_SEC = 5.0
_HALF_OPEN_SEC = 10.0
"""Time limit of one direction after the end of the other."""

_IDLE_SEC, _PROBE_SEC, _PROBES = 30, 10, 3


async def connect_socket(host: str, port: int, timeout_sec: float = _CONNECT_SEC) -> socket.socket:
    """Return a connection to the first address of a host that answers.

    Raises:
        OSError: none answers in time; TimeoutError is one.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_sec):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _, address in found:
            connection = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
            try:
                await loop.sock_connect(connection, address)
            except OSError as error:
                connection.close()
                failure = error
            except BaseException:  # also if cancelled or interrupted; raised again
                connection.close()
                raise
            else:
                tune(connection)
                return connection
        raise failure


def tune(connection: socket.socket) -> None:
    """Send small packets at once, and detect a peer that is gone within a minute."""
    with contextlib.suppress(OSError):  # the peer may have closed it already
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SEC)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_SEC)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


class Joiner:
    """Joins connections. Used on one event loop."""

    def __init__(self) -> None:
        self._buffer = bytearray(READ_BYTES)
        """Shared: a read fills it, and is written to the other connection before the next."""

    async def join(
        self, one: socket.socket, other: socket.socket, count: Callable[[int], None] = lambda size_bytes: None
    ) -> None:
        """Carry bytes both ways until both directions have ended or one has failed, and close both connections.

        Args:
            count: called with the size of each portion.
        """
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()
        first, second = (_End(self._buffer, count, over) for _ in range(2))
        first.other, second.other = second, first
        try:
            await loop.create_connection(lambda: first, sock=one)
            await loop.create_connection(lambda: second, sock=other)
            first.resume()
            second.resume()
            await over
            await _flushed(first, second)
        finally:
            for end in (first, second):
                end.abort()


class _End(asyncio.BufferedProtocol):
    """One of two joined connections. Forwards received bytes to the other."""

    other: _End

    def __init__(self, buffer: bytearray, count: Callable[[int], None], over: asyncio.Future[None]) -> None:
        self.closed = asyncio.Event()
        self._buffer = buffer
        self._count = count
        self._over = over
        self._early = b""
        """Bytes to send that came before this connection's transport was there."""

        self.transport: asyncio.Transport | None = None
        self.is_ended = False
        self.is_full = False
        """True while bytes wait to be sent."""

    def resume(self) -> None:
        """Read on, unless the other connection has bytes to send."""
        if self.transport is not None and not self.transport.is_closing() and not self.other.is_full:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the connection once it has sent its last bytes."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close the connection at once. Idempotent."""
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=0)
        self.transport.pause_reading()  # until the other is there, too; Python 3.11.2 reads nevertheless
        self.write(self._early)
        if self.other.is_ended:
            self.end()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._count(nbytes)
        self.other.write(bytes(memoryview(self._buffer)[:nbytes]))

    def pause_writing(self) -> None:
        self.is_full = True
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        self.other.resume()

    def eof_received(self) -> bool:
        """End the other direction's sending, and keep this one's."""
        self.is_ended = True
        self.other.end()
        if self.other.is_ended:
            self._finish()
        else:
            asyncio.get_running_loop().call_later(_HALF_OPEN_SEC, self._finish)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._finish()

    def write(self, content: bytes) -> None:
        """Send bytes, unless the connection is closing."""
        if self.transport is None:
            self._early += content
        elif not self.transport.is_closing():
            self.transport.write(content)

    def end(self) -> None:
        """End this direction once all bytes are sent."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write_eof()

    def _finish(self) -> None:
        if not self._over.done():
            self._over.set_result(None)


async def _flushed(*ends: _End) -> None:
    """Close connections; wait for a moment until their last bytes are sent."""
    for end in ends:
        end.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HALF_OPEN_SEC):
            for end in ends:
                await end.closed.wait()
