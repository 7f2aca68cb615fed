"""The agent's end of a worker's socket: one request and one response at a time, without a task or stream between."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence

from device_agents.machine.frames import HEADER, MAX_FRAME_BYTES, BrokenFrame, parse_header

_WRITE_BYTES = 1024 * 1024
"""Largest write: the transport copies the part that the socket does not accept at once."""

_STREAM_BYTES = 128 * 1024
"""A stream stops reading from the worker at twice this."""


class WorkerLink(asyncio.Protocol):
    """Made by `connect`. Responses are frames, see device_agents/machine/frames.py."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._wanted_bytes: int | None = None
        """Size of the response under way; None until its header has arrived."""

        self._most_bytes = MAX_FRAME_BYTES
        self._answer: asyncio.Future[bytearray] | None = None
        self._unsent: deque[memoryview] = deque()
        self._is_paused = False

    @classmethod
    async def connect(cls, connection: socket.socket) -> WorkerLink:
        """Take over a connected socket."""
        _, link = await asyncio.get_running_loop().create_connection(cls, sock=connection)
        return link

    @property
    def is_open(self) -> bool:
        """True while requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(
        self, request: bytes | Sequence[bytes | bytearray | memoryview], most_bytes: int = MAX_FRAME_BYTES
    ) -> asyncio.Future[bytearray]:
        """Send a request and return a future of the response. One request at a time.

        The future fails with ConnectionError if the worker closes its connection, and with BrokenFrame if the response
        is invalid or larger than `most_bytes`.

        Args:
            request: one buffer, or consecutive parts.
        """
        self._most_bytes = most_bytes
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None and self.is_open:
            parts = [request] if isinstance(request, bytes) else request
            size_bytes = sum(map(len, parts))
            head = HEADER.pack(size_bytes)
            if size_bytes <= _WRITE_BYTES:
                self._transport.write(b"".join((head, *parts)))
            else:
                self._unsent.extend(_slices([head, *parts]))
                self._send_on()
        else:
            answer.set_exception(ConnectionResetError("the worker closed its connection"))
        return answer

    def as_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Hand the socket over to a pair of streams, after the last response.

        Raises:
            ConnectionResetError: the worker closed its connection.
        """
        if self._transport is None or not self.is_open:
            raise ConnectionResetError("the worker closed its connection")
        reader = asyncio.StreamReader(limit=_STREAM_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return reader, asyncio.StreamWriter(self._transport, protocol, reader, asyncio.get_running_loop())

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_on()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self._fail(BrokenFrame("the worker answered more than it was asked"))
            return
        self._received += data
        try:
            self._take_answer(self._answer)
        except BrokenFrame as broken:
            self._fail(broken)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the worker closed its connection"))

    def _send_on(self) -> None:
        while self._unsent and not self._is_paused and self._transport is not None:
            self._transport.write(self._unsent.popleft())

    def _take_answer(self, answer: asyncio.Future[bytearray]) -> None:
        if self._wanted_bytes is None:
            if len(self._received) < HEADER.size:
                return
            self._wanted_bytes = parse_header(self._received[: HEADER.size])
            if self._wanted_bytes > self._most_bytes:
                # Before its content is received.
                raise BrokenFrame(f"an answer of {self._wanted_bytes} bytes, where {self._most_bytes} are possible")
        end = HEADER.size + self._wanted_bytes
        if len(self._received) < end:
            return
        if len(self._received) > end:
            # A candidate wrote to the socket: the next answer would not be the worker's.
            raise BrokenFrame("the worker answered more than it was asked")
        received, self._received = self._received, bytearray()
        del received[: HEADER.size]
        answer.set_result(received)
        self._wanted_bytes = None

    def _fail(self, error: Exception) -> None:
        self._unsent.clear()
        if self._transport is not None:
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _slices(parts: Sequence[bytes | bytearray | memoryview]) -> list[memoryview]:
    return [
        memoryview(part)[start : start + _WRITE_BYTES] for part in parts for start in range(0, len(part), _WRITE_BYTES)
    ]
