"""A timeout that processes pending input before it fires, so that a stalled process does not blame its peer.

After a stall the timer and the socket's content are due together, and the timer would win: reading takes
several turns of the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_READING_SEC = 0.1
"""Time to read the input that has come by the end."""

_LONGEST_STALL_SEC = 2.0
"""After a longer stall than this, everything has had time enough to be read."""


@asynccontextmanager
async def fair_timeout(limit_sec: float) -> AsyncIterator[None]:
    """Like `asyncio.timeout`, but process pending input before firing.

    Raises:
        TimeoutError: the block takes longer.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as limit:

        def end() -> None:
            now_sec = loop.time()
            late_sec = min(now_sec - timer.when(), _LONGEST_STALL_SEC)
            limit.reschedule(now_sec + late_sec + _READING_SEC)

        timer = loop.call_later(limit_sec, end)
        try:
            yield
        finally:
            timer.cancel()
