"""Prefetches messages from a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_BYTES = 256 * 1024
"""Limit on all messages read ahead together; a larger message is read alone. Keeps holders from filling the memory."""


class ReadAhead(Generic[T]):
    """Bounded queue that reads messages of a stream before they are needed.

    Args:
        most: most messages in the queue, fewer if they are large; the rest waits at the sender.
        size_of: returns the size of a message [bytes].
    """

    def __init__(self, messages: AsyncIterator[T], *, most: int, size_of: Callable[[T], int]) -> None:
        self.in_hand: T | None = None
        """The last requested one, until its consumer is done and sets this to None."""

        self._size_of = size_of
        self._queue: asyncio.Queue[T | None] = asyncio.Queue(most)
        self._ahead_bytes = 0
        self._taken = asyncio.Event()
        self._broke: Exception | None = None
        self._reader = asyncio.create_task(self._read(messages), name="read ahead")

    @property
    def are_there(self) -> bool:
        """True if the next message, or the end, has arrived."""
        return not self._queue.empty()

    async def next(self) -> T | None:
        """Return the next message, None at the end of the stream. Raises the stream's error."""
        self.in_hand = await self._queue.get()
        if self.in_hand is not None:
            self._ahead_bytes -= self._size_of(self.in_hand)
        self._taken.set()
        if self.in_hand is None and self._broke is not None:
            raise self._broke
        return self.in_hand

    def rest(self) -> list[T]:
        """Return the unprocessed messages that have arrived. Call nothing else afterwards."""
        waiting = [self.in_hand]
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        return [message for message in waiting if message is not None]

    async def aclose(self) -> None:
        """Stop reading."""
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self, messages: AsyncIterator[T]) -> None:
        try:
            async for message in messages:
                size = self._size_of(message)
                while self._ahead_bytes + size > _MOST_BYTES and not self._queue.empty():
                    self._taken.clear()
                    await self._taken.wait()
                self._ahead_bytes += size
                await self._queue.put(message)
        except Exception as error:  # noqa: BLE001 - whoever asks for the next one gets it
            self._broke = error
        await self._queue.put(None)
