"""One worker of a session: started when it is needed, replaced after a failure, gone when the session ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from device_agents.workers.handle import WorkerHandle


class WorkerSlot:
    """Holds at most one worker."""

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, WorkerHandle]],
        check: Callable[[], None],
        killed: Callable[[WorkerHandle], None],
    ) -> None:
        """Args:
        start: makes a worker.
        check: raises if no worker may be started or used any more.
        killed: is called with each worker that was killed.
        """
        self._start = start
        self._check = check
        self._killed = killed
        self._lock = asyncio.Lock()
        self._worker: WorkerHandle | None = None

    @property
    def current(self) -> WorkerHandle | None:
        """The worker, if there is one that can take a request."""
        return self._worker if self._worker is not None and self._worker.is_usable else None

    async def worker(self, accepts: Callable[[WorkerHandle], bool] = lambda _: True) -> WorkerHandle:
        """Return a worker that can take a request; start one unless `accepts` takes the current one."""
        async with self._lock:
            self._check()
            if self._worker is not None and self._worker.is_usable and accepts(self._worker):
                return self._worker
            await self._empty()
            starting = asyncio.create_task(self._start(), name="start-worker")
            try:
                self._worker = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # Half a start would leave an unknown process and directory: finish it, then `vacant` ends it.
                self._worker = await starting
                raise
            return self._worker

    @contextlib.asynccontextmanager
    async def vacant(self) -> AsyncIterator[None]:
        """Kill the worker, and start no other meanwhile."""
        async with self._lock:
            await self._empty()
            yield

    async def _empty(self) -> None:
        if self._worker is not None:
            await self._worker.kill()
            self._killed(self._worker)
            self._worker = None
