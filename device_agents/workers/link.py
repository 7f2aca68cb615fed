"""The agent's end of a worker's socket: one request out, one response in, without a task or a stream in between."""

from __future__ import annotations

import asyncio
import socket

from device_agents.machine.frames import HEADER, MAX_FRAME_BYTES, BrokenFrame, format_frame, parse_header


class WorkerLink(asyncio.Protocol):
    """Made by `connect`. Responses are frames, see device_agents/machine/frames.py."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._wanted_bytes: int | None = None
        """Size of the response under way; None until its header has arrived."""

        self._most_bytes = MAX_FRAME_BYTES
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, connection: socket.socket) -> WorkerLink:
        """Take over a connected socket."""
        _, link = await asyncio.get_running_loop().create_connection(cls, sock=connection)
        return link

    @property
    def is_open(self) -> bool:
        """True while requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def ask(self, request: bytes, most_bytes: int = MAX_FRAME_BYTES) -> asyncio.Future[bytes]:
        """Send a request; the future gets its response, or ConnectionError or BrokenFrame, as above `most_bytes`.

        One at a time: the next only after the response to the one before.
        """
        self._most_bytes = most_bytes
        answer = self._answer = asyncio.get_running_loop().create_future()
        if self._transport is not None and self.is_open:
            self._transport.write(format_frame(request))
        else:
            answer.set_exception(ConnectionResetError("the worker closed its connection"))
        return answer

    def close(self) -> None:
        """Close the socket. Idempotent."""
        if self._transport is not None:
            self._transport.close()

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

    def _take_answer(self, answer: asyncio.Future[bytes]) -> None:
        if self._wanted_bytes is None:
            if len(self._received) < HEADER.size:
                return
            self._wanted_bytes = parse_header(self._received[: HEADER.size])
            if self._wanted_bytes > self._most_bytes:
                # Before any of it is taken in.
                raise BrokenFrame(f"an answer of {self._wanted_bytes} bytes, where {self._most_bytes} are possible")
        end = HEADER.size + self._wanted_bytes
        if len(self._received) < end:
            return
        if len(self._received) > end:
            # A candidate wrote to the socket: what would be read as the answer for the next one is not the worker's.
            raise BrokenFrame("the worker answered more than it was asked")
        answer.set_result(bytes(memoryview(self._received)[HEADER.size :]))
        self._received.clear()
        self._wanted_bytes = None

    def _fail(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
