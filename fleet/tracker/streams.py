"""Read the hello that opens a stream within a time limit, and detect the stream's end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from fleet.errors import InvalidRequest
from fleet.wire.fair_timeout import fair_timeout

M = TypeVar("M")


async def first_message(messages: AsyncIterator[M], timeout_sec: float) -> M | None:
    """Return the first message of a stream; None if it ended without any.

    Raises:
        InvalidRequest: none came in time. Silent streams would stay for ever.
    """
    try:
        async with fair_timeout(timeout_sec):
            return await anext(messages, None)
    except TimeoutError:
        raise InvalidRequest(f"no hello came within {timeout_sec:g} s; send it first") from None


def when_over(callback: Callable[[], None]) -> None:
    """Call back when the stream served by this task ends, however it ends, also while an answer is being sent.

    gRPC's own callbacks keep each other, the stream and all that it had, until Python looks for garbage, which a
    tracker seldom does: 10 kB for each stream that there ever was.
    """
    task = asyncio.current_task()
    if task is not None:
        task.add_done_callback(lambda _: callback())
