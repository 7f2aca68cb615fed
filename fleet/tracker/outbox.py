"""Outbox of one stream: bounded, sent many items at a time, closed from either side."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from fleet.errors import FleetError

T = TypeVar("T")


class Outbox(Generic[T]):
    """Bounded queue of items for one peer.

    A peer that does not read loses its stream instead of filling the tracker's memory.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[T] = []
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()
        self._task = asyncio.current_task()
        self.is_closed = False
        self.error: FleetError | None = None
        """Error that ends the stream, caused by a message of its peer."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item. If too many wait, end the stream."""
        if self.is_closed:
            return
        if len(self._items) >= self._limit:
            self.cut()
            return
        self._items.append(item)
        self._filled.set()
        if len(self._items) >= self._limit // 4:
            self._drained.clear()

    def close(self) -> None:
        """Let the stream end once everything was sent. Idempotent."""
        self.is_closed = True
        self._filled.set()
        self._drained.set()

    def fail(self, error: FleetError) -> None:
        """Let the stream end with an error once everything was sent."""
        self.error = self.error or error
        self.close()

    def cut(self) -> None:
        """End the stream now and lose unsent items, since the sender may be blocked for ever."""
        self._items.clear()
        self.close()
        if self._task:
            self._task.cancel()

    async def wait_drained(self) -> None:
        """Wait until the peer has taken enough for more to be sent."""
        await self._drained.wait()

    async def take(self, limit: int, timeout_sec: float | None = None) -> list[T] | None:
        """Return the next items, at most `limit`; none after `timeout_sec`; None at the end of the stream.

        Raises:
            FleetError: the error that ends the stream.
        """
        if not self._items and not self.is_closed:
            try:
                async with asyncio.timeout(timeout_sec):
                    await self._filled.wait()
            except TimeoutError:
                return []
        if not self._items and self.error is not None:
            raise self.error
        if not self._items:
            return None if self.is_closed else []
        taken, self._items = self._items[:limit], self._items[limit:]
        if not self._items and not self.is_closed:
            self._filled.clear()
        if len(self._items) < self._limit // 4:
            self._drained.set()
        return taken
