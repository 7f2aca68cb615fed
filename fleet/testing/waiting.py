"""Waiting for conditions outside the test's control, by polling."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SEC = 0.01


async def eventually(predicate: Callable[[], T | Awaitable[T | None] | None], timeout_sec: float = 10.0) -> T:
    """Return the first true value of `predicate`, which may be async.

    Raises:
        TimeoutError: there was none in time; the message names the predicate.
    """
    ends_at_sec = time.monotonic() + timeout_sec
    while True:
        value = predicate()
        result: T | None = await value if inspect.isawaitable(value) else value
        if result:
            return result
        if time.monotonic() > ends_at_sec:
            raise TimeoutError(
                f"{_name(predicate)} was not true within {timeout_sec:g} s; its last value was {result!r}"
            )
        await asyncio.sleep(_PAUSE_SEC)


def eventually_sync(predicate: Callable[[], T], timeout_sec: float = 10.0) -> T:
    """Return the first true value of `predicate`, for code without an event loop.

    Raises:
        TimeoutError: there was none in time.
    """
    ends_at_sec = time.monotonic() + timeout_sec
    while not (result := predicate()):
        if time.monotonic() > ends_at_sec:
            raise TimeoutError(
                f"{_name(predicate)} was not true within {timeout_sec:g} s; its last value was {result!r}"
            )
        time.sleep(_PAUSE_SEC)
    return result


def _name(predicate: Callable[[], object]) -> str:
    return getattr(predicate, "__qualname__", repr(predicate))
