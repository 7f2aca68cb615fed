"""Renews the claim on a running job, and stops the run if the claim is lost or the user cancels."""

from __future__ import annotations

import asyncio
import logging
from typing import TypeVar

from fleet.errors import FleetError
from fleet.library import Library, Standing

T = TypeVar("T")

logger = logging.getLogger(__name__)

RENEW_SEC = 1.0
"""Also the longest delay until a job sees a request to stop."""


class JobClaim:
    """Claim of one optimizer on one job."""

    def __init__(self, library: Library, job_name: str, optimizer: str) -> None:
        self._library = library
        self._job_name = job_name
        self.optimizer = optimizer
        self.standing = Standing.KEPT
        """Last state from the library."""

    async def keep(self, work: asyncio.Task[T] | None = None) -> None:
        """Renew the claim until it is lost or the job has to stop; then cancel the work.

        A library that cannot be reached is asked again: the work itself stops when it cannot store a result.
        """
        while self.standing is Standing.KEPT or work is None:
            try:
                found = await asyncio.to_thread(self._library.queue.renew, self.optimizer, [self._job_name])
                self.standing = found[self._job_name]
            except FleetError as error:
                logger.warning("claim not renewed", extra={"job": self._job_name, "error": str(error)})
            if self.standing is Standing.KEPT or work is None:
                await asyncio.sleep(RENEW_SEC)
        logger.info("job stops", extra={"job": self._job_name, "standing": self.standing.value})
        if work is not None:
            work.cancel()
