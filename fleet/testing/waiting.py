"""Waiting for conditions outside the test's control, by polling.

Slow checks are made less often, so that polling does not take the processor from the awaited work.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_TIMEOUT_SEC = 30.0
"""Only failures take so long: a moment on an idle machine was over ten seconds on a busy one."""

_PAUSE_SEC, _MAX_PAUSE_SEC = 0.01, 0.5
_PAUSE_PER_LOOK = 3.0
"""Pause, as a multiple of the last check's time."""


async def eventually(predicate: Callable[[], T | Awaitable[T | None] | None], timeout_sec: float = _TIMEOUT_SEC) -> T:
    """Return the first true value of `predicate`, which may be async.

    Raises:
        TimeoutError: there was none in time; the message names the predicate.
    """
    ends_at_sec = time.monotonic() + timeout_sec
    while True:
        looked_at_sec = time.monotonic()
        value = predicate()
        result: T | None = await value if inspect.isawaitable(value) else value
        if result:
            return result
        if time.monotonic() > ends_at_sec:
            raise TimeoutError(
                f"{_name(predicate)} was not true within {timeout_sec:g} s; its last value was {result!r}"
            )
        await asyncio.sleep(_pause_sec(looked_at_sec))


def eventually_sync(predicate: Callable[[], T], timeout_sec: float = _TIMEOUT_SEC) -> T:
    """Return the first true value of `predicate`, for code without an event loop.

    Raises:
        TimeoutError: there was none in time.
    """
    ends_at_sec = time.monotonic() + timeout_sec
    while True:
        looked_at_sec = time.monotonic()
        if result := predicate():
            return result
        if time.monotonic() > ends_at_sec:
            raise TimeoutError(
                f"{_name(predicate)} was not true within {timeout_sec:g} s; its last value was {result!r}"
            )
        time.sleep(_pause_sec(looked_at_sec))


def _pause_sec(looked_at_sec: float) -> float:
    took_sec = time.monotonic() - looked_at_sec
    return min(max(_PAUSE_SEC, _PAUSE_PER_LOOK * took_sec), _MAX_PAUSE_SEC)


def _name(predicate: Callable[[], object]) -> str:
    return getattr(predicate, "__qualname__", repr(predicate))
