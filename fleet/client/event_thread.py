"""An event loop on a thread of its own, for synchronous callers.

An interrupt of the caller's thread cancels the awaited call, properly: a request leaves
the queue, a measurement stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

from fleet.errors import FleetError

T = TypeVar("T")

_CANCEL_TIMEOUT_SEC = 10.0
"""Time for an interrupted call to release its resources."""

_LOOK_SEC = 1.0
_CLOSED = "the client is closed; connect again"


class EventThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_on_loop_error)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Run a coroutine there and wait for it. An interrupt here cancels it and waits for it to clean up."""
        if threading.current_thread() is self._thread:
            work.close()
            raise FleetError("a callback of the client cannot call the client; hand the work to another thread")
        if self._loop.is_closed():
            work.close()
            raise FleetError(_CLOSED)
        finished = threading.Event()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(lambda _: finished.set())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # the interrupt came before the loop knew about the coroutine
                work.close()
                finished.set()

        try:
            # Inside the try block: the interrupt may arrive while the coroutine runs, before this call has returned.
            self._loop.call_soon_threadsafe(start)
            while not finished.wait(_LOOK_SEC):
                if self._loop.is_closed():
                    raise FleetError(_CLOSED)
        except BaseException:  # also if cancelled or interrupted; raised again
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(cancel)
                finished.wait(_CANCEL_TIMEOUT_SEC)
            raise
        if tasks[0].cancelled():
            raise FleetError(_CLOSED)
        return tasks[0].result()

    def call(self, function: Callable[[], object]) -> None:
        """Call a plain function on the loop's thread."""
        self._loop.call_soon_threadsafe(function)

    def pull(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Yield the items of an asynchronous generator that runs on the loop."""

        async def following() -> tuple[T, ...]:
            async for item in source:
                return (item,)
            return ()

        try:
            while item := self.run(following()):
                yield item[0]
        finally:
            self.run(source.aclose())

    def stop(self) -> None:
        """End the thread. Idempotent."""
        if self._loop.is_closed():
            return
        # Other threads may be waiting for tasks that still run on the loop.
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(_CANCEL_TIMEOUT_SEC)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # grpc.aio shares one completion queue between event loops: with several loops in a process, one of them wakes for
    # an event that another has taken. That is harmless and not worth a traceback.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
