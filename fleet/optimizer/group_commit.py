"""Group commit: stores results that arrive within a moment in one transaction.

A transaction of its own takes a record six times the processor time of one that it shares with others
(`benchmarks/library_rate`), and on one machine it runs on the very cores that measure the next candidate. A process
killed within the interval loses its measurements, which nobody has seen yet, as if they had still been under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from fleet.optimizer.core.events import Store

_MOMENT_SEC = 0.25
"""Longest time between a result and its record: shorter than a display takes to show it."""


class GroupCommit:
    """Results waiting to be stored. The `async with` block ends once all are stored."""

    def __init__(self, store: Callable[[list[Store]], Awaitable[None]], *, moment_sec: float = _MOMENT_SEC) -> None:
        """Start with nothing to store.

        Args:
            store: stores some in one transaction, and tells whom it concerns.
        """
        self._store = store
        self._moment_sec = moment_sec
        self._waiting: list[Store] = []
        self._hurry = asyncio.Event()
        self._storing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.finish()

    def add(self, result: Store) -> None:
        """Have a result stored within a moment.

        Raises:
            LibraryError, DiskFull: an earlier one could not be stored.
        """
        self._waiting.append(result)
        if self._storing is not None and self._storing.done():
            self._storing.result()
            self._storing = None
        if self._storing is None:
            self._hurry.clear()
            self._storing = asyncio.create_task(self._store_all(), name="store results")

    async def finish(self) -> None:
        """Store all results now, and return when they are stored.

        Raises:
            LibraryError, DiskFull: one could not be stored.
        """
        self._hurry.set()
        if self._storing is not None:
            await asyncio.shield(self._storing)  # a task cancelled while it waits has measured them nevertheless

    async def _store_all(self) -> None:
        while self._waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._moment_sec):
                    await self._hurry.wait()
            some, self._waiting = self._waiting, []
            await self._store(some)
