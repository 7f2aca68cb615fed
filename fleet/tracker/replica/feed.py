"""Bounded queue of the commits that one standby has yet to receive.

A message carries all commits that have come since the standby acknowledged the one before. Only a commit that a grant
waits for is urgent: others wait a little for more.
"""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError, LimitReached
from fleet.tracker.journal.commits import Commit

_MOST_ROWS = 200_000
"""Rows that may wait for a standby. At more, it has to begin again with a snapshot."""
_UNHURRIED_SEC = 0.02
"""Longest time that commits wait for more if no grant waits for them."""


class Feed:
    """Queue of commits for one standby."""

    def __init__(self, most_rows: int = _MOST_ROWS) -> None:
        self.error: FleetError | None = None
        """Error that ended it."""
        self.is_closed = False
        self._most_rows = most_rows
        self._commits: list[Commit] = []
        self._rows = 0
        self._is_urgent = False
        self._last_taken = self._last_acknowledged = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        """Set if there is something to take."""

    def put(self, commit: Commit) -> None:
        """Add a commit. If too many rows wait, end the feed."""
        if self.is_closed:
            return
        self._commits.append(commit)
        self._rows += 1 + len(commit.rows) + len(commit.removed)
        if self._rows > self._most_rows:
            self.close(LimitReached(f"the standby is {self._rows} rows behind; follow anew"))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_UNHURRIED_SEC, self._be_late)
        self._look()

    def hurry(self) -> None:
        """Send the commits so far as soon as possible: a grant waits for them."""
        self._is_urgent = True
        self._look()

    def acknowledge(self, commit: int) -> None:
        """Note that the standby has all commits up to this one."""
        self._last_acknowledged = commit
        self._look()

    def close(self, error: FleetError | None = None) -> None:
        """End it. Idempotent."""
        self.error = self.error or error
        self.is_closed = True
        self._commits.clear()
        self._ready.set()

    async def take(self, timeout_sec: float) -> list[Commit]:
        """Return the waiting commits once they are to be sent; none after a while.

        Raises:
            FleetError: the error that ended the feed.
        """
        if not self._ready.is_set():
            try:
                async with asyncio.timeout(timeout_sec):
                    await self._ready.wait()
            except TimeoutError:
                return []
        if self.error is not None:
            raise self.error
        commits, self._commits, self._rows = self._commits, [], 0
        if commits:
            self._last_taken = commits[-1].chain.commits
        if not self.is_closed:
            self._is_urgent = False
            self._ready.clear()
        return commits

    def _be_late(self) -> None:
        self._timer = None
        self.hurry()

    def _look(self) -> None:
        if self._commits and self._is_urgent and self._last_taken <= self._last_acknowledged:
            self._ready.set()
