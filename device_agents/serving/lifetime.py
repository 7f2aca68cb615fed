"""Life of a session: its deadline, and the cancellation of all work in progress at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fleet.errors import FleetError

T = TypeVar("T")


class Lifetime:
    """Lasts until `end`. Use from one event loop."""

    def __init__(self) -> None:
        self._ended: asyncio.Future[FleetError] = asyncio.get_running_loop().create_future()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def is_live(self) -> bool:
        """True until `end`."""
        return not self._ended.done()

    def check(self) -> None:
        """Raise the error of the end if it has come.

        Raises:
            FleetError: the session has ended.
        """
        if self._ended.done():
            raise self._ended.result()

    def arm(self, after_sec: float, expire: Callable[[], None]) -> None:
        """Call `expire` after this time. Replaces any earlier deadline."""
        if self._expiry is not None:
            self._expiry.cancel()
        if self.is_live:
            self._expiry = asyncio.get_running_loop().call_later(max(0.0, after_sec), expire)

    def end(self, error: FleetError) -> bool:
        """Have all waiting calls raise `error`, and cancel the deadline; return False if the end has come before."""
        if self._ended.done():
            return False
        self._ended.set_result(error)
        for task in self._under_way:
            task.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        return True

    async def until_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work, but no longer than the session lives: its end cancels the work in progress.

        Raises:
            FleetError: the session ended before `work` did; the error says why.
        """
        if self._ended.done():
            work.close()
            raise self._ended.result()
        task = _current_task()
        # Run in the caller's own task, as asyncio.timeout does: a task per step would cost more than the step.
        self._under_way.add(task)
        try:
            result = await work
        except BaseException as error:  # the session's end replaces any error that it caused
            if not self._ended.done():
                raise
            if task.uncancel() > 0 and isinstance(error, asyncio.CancelledError):
                raise  # the task was cancelled for another reason, too
            raise self._ended.result() from None
        finally:
            self._under_way.discard(task)
        # Work that ends together with the session counts as interrupted: its worker was killed.
        if self._ended.done():
            task.uncancel()
            raise self._ended.result()
        return result

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Cancel the current task if the session ends inside the block, since a holder may never read its response.

        Raises:
            FleetError: the session has ended.
        """
        self.check()
        task = _current_task()
        self._under_way.add(task)
        try:
            yield
        finally:
            self._under_way.discard(task)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a session is used from asyncio tasks only")
    return task
