"""Interface of the executor of searches and builds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Pool(Protocol):
    """An executor with a time limit for each task."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]: ...

    def submit_within(
        self, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]: ...

    def submit_near(
        self, key: str, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run a task, preferably in the worker that ran earlier tasks of this key."""
        ...


class Builders(Pool, Protocol):
    """A pool with workers on this machine or on others."""

    @property
    def hosts(self) -> AbstractSet[str]:
        """Fingerprints of the machines that it keeps busy."""
        ...


async def run_within(pool: Pool, timeout_sec: float, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a task and wait for it.

    Raises:
        BuildError: it crashed, or took longer.
    """
    return await asyncio.wrap_future(pool.submit_within(timeout_sec, fn, *args, **kwargs))
