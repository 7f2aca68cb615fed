"""Where search and builds run, as the optimizer sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Pool(Protocol):
    """An executor whose tasks have a time limit each."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def submit_within(
        self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Rather run in the worker that had tasks of this key before."""
        ...


async def run_within(pool: Pool, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a task and wait for it.

    Raises:
        BuildError: it crashed, or took longer.
    """
    return await asyncio.wrap_future(pool.submit_within(timeout_sec, fn, *args, **kwargs))
