"""Holds the tracker's grants until its standby has their commit, for a tenth of a second at most. Pure.

A standby that is slower counts as not following until it has caught up: it keeps nobody waiting.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from fleet.errors import InvalidRequest

T = TypeVar("T")

PATIENCE_SEC = 0.1
"""Longest silence of a standby that others wait for."""


class Gate(Generic[T]):
    """The items of a tracker with one standby, in order. Times are on a monotonic clock [s]."""

    def __init__(self) -> None:
        self.is_followed = False
        """True while the standby keeps up."""

        self._sent: deque[tuple[int, float]] = deque()
        """Commits that the standby has not acknowledged, and when each was sent."""

        self._held: deque[tuple[int, T]] = deque()
        self._last_commit = 0
        self._last_acknowledged = 0

    def note_commit(self, commit: int, now_sec: float) -> None:
        """Note that a commit was sent to the standby."""
        self._sent.append((commit, now_sec))
        self._last_commit = commit

    @property
    def is_closed(self) -> bool:
        """True if the standby has yet to receive commits, and keeps up, or items wait already."""
        return bool(self._held) or (self.is_followed and bool(self._sent))

    def hold(self, item: T) -> None:
        """Hold an item until the standby has all commits so far."""
        self._held.append((self._last_commit, item))

    def acknowledge(self, commit: int, now_sec: float) -> list[T]:
        """Note that the standby has all commits up to this one; return the items that can go now.

        Raises:
            InvalidRequest: it was not sent that many, or has said more before.
        """
        if not self._last_acknowledged <= commit <= max(self._last_commit, self._last_acknowledged):
            raise InvalidRequest(f"the standby acknowledges commit {commit}, and {self._last_commit} was the last")
        self._last_acknowledged = commit
        while self._sent and self._sent[0][0] <= commit:
            self._sent.popleft()
        self.is_followed = self.is_followed or not self._is_late(now_sec)
        ready = []
        while self._held and self._held[0][0] <= commit:
            ready.append(self._held.popleft()[1])
        return ready

    def give_up_late(self, now_sec: float) -> list[T]:
        """Stop waiting for a standby that is silent; return the items that can go now."""
        return self.open() if self._is_late(now_sec) else []

    def due_sec(self) -> float | None:
        """Return the moment at which waiting ends; None if nothing waits."""
        return self._sent[0][1] + PATIENCE_SEC if self._held and self._sent else None

    def begin(self, commit: int) -> None:
        """Begin with a new standby; its snapshot has at least this commit."""
        self._sent.clear()
        self.is_followed = False
        self._last_commit = self._last_acknowledged = commit

    def open(self) -> list[T]:
        """Wait for nobody from now on; return all items."""
        self.is_followed = False
        ready = [item for _, item in self._held]
        self._held.clear()
        return ready

    def _is_late(self, now_sec: float) -> bool:
        return bool(self._sent) and now_sec - self._sent[0][1] >= PATIENCE_SEC
