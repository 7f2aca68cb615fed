"""Runs reads that may never return, such as those of a vendor's driver, outside the event loop with a time limit.

A driver that hangs costs its own device, not the heartbeats and the data path of all devices of the agent. Each source
has one thread, so a hanging source is asked once, and again only after it has answered. The thread is a daemon, not an
executor's: neither other work nor the end of the agent waits for it. Only a hang inside the kernel, which no signal
ends, leaves a remnant of the process listed, without its port and its locks, until the kernel lets go.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from fleet.errors import DeviceClosed, DeviceUnreachable

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Something that can be read, and may hang."""

    name: str
    """Name in messages: "NVML"."""

    remedy: str
    """Advice in case it hangs."""

    limit_sec: float = 2.0
    """Longest wait for an answer [s]: far longer than a healthy source needs, far shorter than the silence after which
    a tracker takes the agent for dead."""

    start_sec: float = 10.0
    """The limit for the first read [s]: devices may have to wake up."""


class BlockingReads:
    """Reads one source, one read at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._reads: SimpleQueue[_Read[Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._last: _Read[Any] | None = None
        self._is_closed = False

    async def ask(self, read: Callable[[], T], limit_sec: float | None = None) -> T:
        """Return the result of `read`. It is called in the thread, after the previous read has returned.

        Args:
            limit_sec: overrides the source's limit.

        Raises:
            DeviceUnreachable: this read, or the one before it, did not return within its limit.
        """
        while self._last is not None and not self._last.is_back.is_set():
            await self._wait_for(self._last)
        asked = self._put(read, self._source.limit_sec if limit_sec is None else limit_sec)
        await self._wait_for(asked)
        return asked.answer.result()

    async def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Call `last` in the thread and end the thread. Idempotent.

        While a read hangs, `last` only waits in line: it runs if the source ever answers.
        """
        if self._is_closed:
            return
        before = self._last
        reads = [before] if before is not None else []
        if self._thread is not None:
            reads.append(self._put(last, self._source.limit_sec))
        self._is_closed = True
        self._reads.put(None)
        with contextlib.suppress(DeviceUnreachable):
            for read in reads:
                await self._wait_for(read)

    def _put(self, read: Callable[[], T], limit_sec: float) -> _Read[T]:
        if self._is_closed:
            raise DeviceClosed(f"{self._source.name} was closed during a read")
        if self._thread is None:
            self._thread = threading.Thread(
                target=_read_all, args=(self._reads,), name=f"read-{self._source.name}", daemon=True
            )
            self._thread.start()
        asked = _Read(read=read, loop=asyncio.get_running_loop(), due_sec=time.monotonic() + limit_sec)
        self._last = asked
        self._reads.put(asked)
        return asked

    async def _wait_for(self, asked: _Read[Any]) -> None:
        try:
            async with asyncio.timeout(max(0.0, asked.due_sec - time.monotonic())):
                await asked.is_back.wait()
        except TimeoutError:
            if asked.answer.done():
                return  # the answer has arrived: a busy loop saw it and the limit at the same time
            error = _unreachable(self._source, asked.asked_at)
            if not asked.is_missed:
                asked.is_missed = True
                logger.warning("a driver does not answer", extra={"source": self._source.name, "error": str(error)})
            raise error from None


_asked_outside: dict[Source, tuple[datetime, concurrent.futures.Future[Any]]] = {}
"""The last read of each source from outside an event loop, so that at most one thread hangs per source."""


def ask_in_time(source: Source, read: Callable[[], T], limit_sec: float) -> T:
    """Return the result of `read`, for code outside an event loop. It is called in a thread of its own.

    Raises:
        DeviceUnreachable: it did not return within the limit, or the read before it has not returned yet.
    """
    before = _asked_outside.get(source)
    if before is not None and not before[1].done():
        raise _unreachable(source, before[0])
    asked_at = datetime.now(UTC)
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    _asked_outside[source] = (asked_at, answer)
    threading.Thread(target=_answer, args=(read, answer), name=f"read-{source.name}", daemon=True).start()
    concurrent.futures.wait((answer,), limit_sec)
    if not answer.done():
        raise _unreachable(source, asked_at)
    return answer.result()


@dataclass(slots=True, kw_only=True, eq=False)
class _Read(Generic[T]):
    read: Callable[[], T]
    loop: asyncio.AbstractEventLoop
    due_sec: float
    """Deadline on the monotonic clock: later callers of a hanging read wait no longer than the first."""

    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    answer: concurrent.futures.Future[T] = field(default_factory=concurrent.futures.Future)
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    is_missed: bool = False
    """True if it has been logged as late."""


def _read_all(reads: SimpleQueue[_Read[Any] | None]) -> None:
    while (asked := reads.get()) is not None:
        _answer(asked.read, asked.answer)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            asked.loop.call_soon_threadsafe(asked.is_back.set)


def _answer(read: Callable[[], T], answer: concurrent.futures.Future[T]) -> None:
    try:
        answer.set_result(read())
    except BaseException as error:  # noqa: BLE001 - whoever asked gets it
        answer.set_exception(error)


def _unreachable(source: Source, asked_at: datetime) -> DeviceUnreachable:
    return DeviceUnreachable(f"{source.name} has not answered since {asked_at:%Y-%m-%d %H:%M:%S} UTC; {source.remedy}")
