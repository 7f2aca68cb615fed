"""How a stream to the tracker begins: with a hello, soon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from fleet.errors import InvalidRequest

M = TypeVar("M")


async def first_message(messages: AsyncIterator[M], timeout_sec: float) -> M | None:
    """Return the first message of a stream; None when it ended without any.

    Raises:
        InvalidRequest: none came in time. Silent streams would stay for ever.
    """
    try:
        async with asyncio.timeout(timeout_sec):
            return await anext(messages, None)
    except TimeoutError:
        raise InvalidRequest(f"no hello came within {timeout_sec:g} s; send it first") from None
