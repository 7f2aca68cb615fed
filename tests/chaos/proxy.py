"""A proxy that cuts, delays, holds and refuses connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Iterator

_CHUNK_BYTES = 64 * 1024


class Link:
    """Forwards a loopback port to its server's current port."""

    def __init__(self, rng: random.Random) -> None:
        self.target_port = 0
        """Port of the server, which is new after each start."""

        self.delay_sec = 0.0
        """Each chunk of data waits up to this long, so that connections overtake each other; within one, data stay in
        order, as TCP has it."""

        self.port = 0
        self._refusals = self._holds = 0
        """Faults that go on at once."""
        self._rng = rng
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        """Reset all connections, and accept none within the block."""
        self._refusals += 1
        self.cut()
        try:
            yield
        finally:
            self._refusals -= 1

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """Hold all data within the block, as if the network were down, without resetting connections."""
        self._holds += 1
        self._flows.clear()
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds:
                self._flows.set()

    @contextlib.contextmanager
    def delaying(self, most_sec: float) -> Iterator[None]:
        """Delay data within the block."""
        self.delay_sec = most_sec
        try:
            yield
        finally:
            self.delay_sec = 0.0

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if not self._refusals:
                there, back = await asyncio.open_connection("127.0.0.1", self.target_port)
                self._writers.add(back)
                await _both(lambda: self._pass(reader, back), lambda: self._pass(there, writer))
                self._end(back)
        except OSError:
            pass  # no server listens now: reset, as the caller would have seen
        finally:
            self._end(writer)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            await self._flows.wait()
            if self.delay_sec:
                await asyncio.sleep(self._rng.uniform(0.0, self.delay_sec))
            writer.write(chunk)
            await writer.drain()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


async def _both(*ways: Callable[[], Awaitable[None]]) -> None:
    """Forward data in both directions until one side ends."""
    tasks = [asyncio.ensure_future(way()) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
