"""Output of workers on stdout and stderr: a bounded tail for error messages, and a broadcast to readers."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, Callable

from fleet.base.text import sanitize_lines

_TAIL_BYTES = 16 * 1024
_READ_BYTES = 64 * 1024
_REST_SEC = 0.05
"""Pause after a full read, so that a worker that writes without end fills its pipe and does not keep the agent busy."""

_MOST_CHUNKS = 256
"""A reader that falls behind by more loses the oldest."""

_UNCAUGHT = re.compile(r"(?:terminate called after throwing an instance of '|uncaught exception of type )([\w:]+)")
"""Report of libstdc++, or of libc++, about the exception that ends a process: its class is known from nowhere else."""


def native_exception(output: str) -> str:
    """Return the class of the C++ exception that ended a process, from its output; empty if there was none."""
    found = _UNCAUGHT.search(output)
    return found[1] if found else ""


class OutputPipe:
    """The reading end of one worker's output."""

    def __init__(self, descriptor: int, sink: Callable[[bytes], None]) -> None:
        self._descriptor: int | None = descriptor
        self._sink = sink
        self._tail = bytearray()
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._on_readable)

    def tail(self) -> str:
        """Return the end of the output, including the pipe's content."""
        if self._descriptor is not None:
            self._read()
        return self._tail.decode(errors="replace").strip()

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._pause is not None:
            self._pause.cancel()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _on_readable(self) -> None:
        size = self._read()
        if self._descriptor is None:
            return
        if size == 0:
            self._loop.remove_reader(self._descriptor)
        elif size == _READ_BYTES:
            self._loop.remove_reader(self._descriptor)
            self._pause = self._loop.call_later(_REST_SEC, self._resume)

    def _resume(self) -> None:
        if self._descriptor is not None:
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _read(self) -> int | None:
        if self._descriptor is None:
            return None
        try:
            content = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        if content:
            self._tail += content
            del self._tail[:-_TAIL_BYTES]
            self._sink(content)
        return len(content)


class OutputBroadcast:
    """The output of all workers of one session, for readers."""

    def __init__(self) -> None:
        self._readers: list[_Reader] = []
        self._is_closed = False

    def write(self, content: bytes) -> None:
        """Send a chunk to all readers."""
        for reader in self._readers:
            reader.put(content)

    def close(self) -> None:
        """End the stream of every reader."""
        self._is_closed = True
        for reader in self._readers:
            reader.put(None)

    async def follow(self) -> AsyncGenerator[str, None]:
        """Yield output written after this call until `close`, without control characters."""
        if self._is_closed:
            return
        reader = _Reader()
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._readers.append(reader)
        try:
            while (content := await reader.get()) is not None:
                text = sanitize_lines(decoder.decode(content))
                if text:
                    yield text
        finally:
            with contextlib.suppress(ValueError):
                self._readers.remove(reader)


class _Reader:
    def __init__(self) -> None:
        self._chunks: deque[bytes | None] = deque(maxlen=_MOST_CHUNKS)
        self._arrived = asyncio.Event()

    def put(self, content: bytes | None) -> None:
        self._chunks.append(content)
        self._arrived.set()

    async def get(self) -> bytes | None:
        while not self._chunks:
            self._arrived.clear()
            await self._arrived.wait()
        return self._chunks.popleft()
