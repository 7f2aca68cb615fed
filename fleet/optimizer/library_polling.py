"""Polls the library beside a running job, also while the library is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fleet.building.turns import Turns
from fleet.errors import FleetError

logger = logging.getLogger(__name__)


async def poll(read: Callable[[], Awaitable[None]], turns: Turns, *, every_sec: float, subject: str) -> None:
    """Call `read` at intervals until cancelled. Each outage of the library costs one warning.

    Args:
        turns: those of the job: nothing is read while its own processor measures.
        subject: name of the job and of the data, for the log.
    """
    is_away = False
    while True:
        await asyncio.sleep(every_sec)
        try:
            async with turns.building():
                await read()
            is_away = False
        except FleetError as error:
            if not is_away:
                logger.warning("library not read, retrying", extra={"subject": subject, "error": str(error)})
            is_away = True
