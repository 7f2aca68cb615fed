"""Runs coroutines concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

T = TypeVar("T")


async def together(parts: Mapping[str, Coroutine[None, None, T]]) -> list[T]:
    """Run coroutines concurrently, in tasks of these names. If one fails, cancel the others and raise its error."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part, name=name) for name, part in parts.items()]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


async def stopped(task: asyncio.Task[T]) -> None:
    """Cancel a task and wait for its end, ignoring its outcome."""
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def started(coroutine: Coroutine[None, None, T], *, name: str) -> AsyncIterator[asyncio.Task[T]]:
    """Run a task during a block, which awaits it. If the block fails first, cancel the task and ignore its outcome."""
    task = asyncio.create_task(coroutine, name=name)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
