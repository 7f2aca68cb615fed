"""Bounded queue of the commits that one standby has yet to receive."""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError, LimitReached
from fleet.tracker.journal.commits import Commit

_MOST_ROWS = 200_000
"""Rows that may wait for a standby. At more, it has to begin again with a snapshot."""


class Feed:
    """Queue of commits for one standby."""

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self.error: FleetError | None = None
        """Error that ended it."""
        self.is_closed = False
        self._most_rows = most_rows
        self._commits: list[Commit] = []
        self._rows = 0
        self._filled = asyncio.Event()

    def put(self, commit: Commit) -> None:
        """Add a commit. If too many rows wait, end the feed."""
        if self.is_closed:
            return
        self._commits.append(commit)
        self._rows += 1 + len(commit.rows) + len(commit.removed)
        if self._rows > self._most_rows:
            self.close(LimitReached(f"the standby is {self._rows} rows behind; follow anew"))
        self._filled.set()

    def close(self, error: FleetError | None = None) -> None:
        """End it. Idempotent."""
        self.error = self.error or error
        self.is_closed = True
        self._commits.clear()
        self._filled.set()

    async def take(self, timeout_sec: float) -> list[Commit]:
        """Return the waiting commits, after a while none.

        Raises:
            FleetError: the error that ended the feed.
        """
        try:
            async with asyncio.timeout(timeout_sec):
                await self._filled.wait()
        except TimeoutError:
            return []
        if self.error is not None:
            raise self.error
        commits, self._commits, self._rows = self._commits, [], 0
        if not self.is_closed:
            self._filled.clear()
        return commits
