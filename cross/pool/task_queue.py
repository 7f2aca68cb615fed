"""A queue for several consumers, in which an item may have a home: the consumer that handles it fastest."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class TaskQueue(Generic[T]):
    """FIFO queue. An item whose home is idle waits for it; while its home is busy, it goes to any idle consumer."""

    def __init__(self) -> None:
        self._items: deque[tuple[T, int | None]] = deque()
        self._changed = threading.Condition()
        self._idle: set[int] = set()
        self._is_closed = False

    def put(self, item: T, home: int | None = None) -> None:
        """Append an item."""
        with self._changed:
            self._items.append((item, home))
            self._changed.notify_all()

    def get(self, taker: int) -> T | None:
        """Wait for the first item that this consumer may take, and remove it; None once the queue is closed and empty.

        A taker is idle while it waits here.
        """
        with self._changed:
            self._idle.add(taker)
            try:
                while (index := self._first_for(taker)) is None and not self._is_closed:
                    self._changed.wait()
            finally:
                self._idle.remove(taker)
                self._changed.notify_all()  # items reserved for this consumer are available to all now
            if index is None:
                return None
            item, _ = self._items[index]
            del self._items[index]
            return item

    def clear(self) -> list[T]:
        """Remove and return all items."""
        with self._changed:
            items = [item for item, _ in self._items]
            self._items.clear()
            return items

    def close(self) -> None:
        """Let consumers end once the queue is empty."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _first_for(self, taker: int) -> int | None:
        homes = [home for _, home in self._items]
        ours = next((index for index, home in enumerate(homes) if home in (None, taker)), None)
        if ours is not None:
            return ours
        return next((index for index, home in enumerate(homes) if home not in self._idle), None)
