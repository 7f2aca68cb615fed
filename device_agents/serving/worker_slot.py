"""Slot for one worker of a session: starts it on demand, replaces it after a failure, kills it with the session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from device_agents.workers.handle import WorkerHandle


class WorkerSlot:
    """Holder of at most one worker."""

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, WorkerHandle]],
        check: Callable[[], None],
        killed: Callable[[WorkerHandle], None],
    ) -> None:
        """Args:
        start: starts a worker.
        check: raises if workers may no longer be started or used.
        killed: called with each killed worker.
        """
        self._start = start
        self._check = check
        self._killed = killed
        self._lock = asyncio.Lock()
        self._worker: WorkerHandle | None = None

    @property
    def current(self) -> WorkerHandle | None:
        """The worker if it can take a request, else None."""
        return self._worker if self._worker is not None and self._worker.is_usable else None

    async def worker(self, accepts: Callable[[WorkerHandle], bool]) -> WorkerHandle:
        """Return a usable worker. Start a new one unless the current one is usable and `accepts` it."""
        async with self._lock:
            self._check()
            if self._worker is not None and self._worker.is_usable and accepts(self._worker):
                return self._worker
            await self._empty()
            starting = asyncio.create_task(self._start(), name="start-worker")
            try:
                self._worker = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # An aborted start would leave an unknown process and directory: finish it; `vacant` kills the worker.
                self._worker = await starting
                raise
            return self._worker

    async def empty(self) -> None:
        """Kill the worker, if there is one."""
        async with self._lock:
            await self._empty()

    @contextlib.asynccontextmanager
    async def vacant(self) -> AsyncIterator[None]:
        """Kill the worker, and prevent a new one inside the block."""
        async with self._lock:
            await self._empty()
            yield

    async def _empty(self) -> None:
        if self._worker is not None:
            await self._worker.kill()
            self._killed(self._worker)
            self._worker = None
