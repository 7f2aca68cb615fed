"""Paces long work so that other tasks get their turns: in portions of less than a millisecond, one per turn of the
loop.

A pause after each portion is not enough where a thousand tasks have long work at once, as after a restart, when every
agent says hello: each would do a portion in the same turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Pace:
    """Admits one portion at a time, in FIFO order of all tasks. For one loop."""

    def __init__(self) -> None:
        self.portions = 0
        """Number of turns."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        """Wait until a portion may run. It lasts until the task awaits something again."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if len(self._waiting) == 1:
            loop.call_soon(self._let_in)
        await mine

    def _let_in(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # otherwise its task was cancelled
                self.portions += 1
                first.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._let_in)


def portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield these items in order, with a fixed number per portion."""
    return (items[start : start + size] for start in range(0, len(items), size))
