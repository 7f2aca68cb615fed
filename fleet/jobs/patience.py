"""Retries calls of an unavailable library, since a job should survive a restart of its database."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TypeVar

from fleet.errors import LibraryDamaged, LibraryError, LibraryReadOnly, NoLibrary

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE_SEC = 120.0
"""Time of retries with an absent library: a database's server restarts in less."""

_AGAIN_SEC = 0.2


async def patiently(call: Callable[[], T]) -> T:
    """Run an idempotent call of the library on a thread, and retry it while the library is unavailable.

    Raises:
        LibraryError, DiskFull: it may only be read, is damaged or full, or has been away for too long.
    """
    until_sec = time.monotonic() + _PATIENCE_SEC
    is_away = False
    while True:
        try:
            return await asyncio.to_thread(call)
        except (LibraryReadOnly, LibraryDamaged, NoLibrary):
            raise
        except LibraryError as error:
            if time.monotonic() > until_sec:
                raise
            if not is_away:
                logger.warning("a job's library is unavailable, retrying", extra={"error": str(error)})
            is_away = True
        await asyncio.sleep(_AGAIN_SEC)
