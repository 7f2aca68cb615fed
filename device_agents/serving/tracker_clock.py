"""The agent's estimate of the tracker's time: the last reported time plus the time since. Independent of wall clocks.

Every message of the tracker carries its time. Subtracting this machine's time since boot at arrival gives the offset
between the two clocks, minus the delay of the message. So the largest of the recent offsets had the least delay, and
is the best. The clock keeps running while the tracker is down. A new connection starts over: another tracker, or the
same one after a restart, may have another clock.

A tracker's own clock stands still while its machine sleeps. Where the agent is on the same machine, all messages after
that have a smaller offset, as if they were late; and late they are where this process alone stood still. So neither is
believed: only the answer to a new hello is known to be of now.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_SEC = 300.0
"""Life of offsets: crystals drift by up to 100 ppm, which is 30 ms in this time."""

_LATEST_SEC = 20.0
"""No message is as late as this on a stream that lives: it would have been given up as silent before."""


def boottime_sec() -> float:
    """Return a monotonic clock that includes suspended time [s]."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class TrackerClock:
    """Estimates the tracker's clock."""

    def __init__(self, local_sec: Callable[[], float] = boottime_sec) -> None:
        self._local_sec = local_sec
        self._offsets: deque[tuple[float, float]] = deque()
        self._offset_sec: float | None = None
        self._is_restarted = True
        self.is_doubtful = False
        """True if a message contradicts earlier ones. Until the next one, leases end too early, never too late."""

    def restart(self) -> None:
        """Start over with the next message, known to be recent; the old estimate serves until then."""
        self._is_restarted = True
        self.is_doubtful = False

    def learn(self, tracker_sec: float) -> None:
        """Record the time in a message that just arrived."""
        now = self._local_sec()
        offset = tracker_sec - now
        if self._is_restarted:
            self._offsets.clear()
            self._is_restarted = False
        elif self._offset_sec is not None and offset < self._offset_sec - _LATEST_SEC:
            self.is_doubtful = True
            return
        self._offsets.append((now, offset))
        while self._offsets[0][0] < now - _WINDOW_SEC:
            self._offsets.popleft()
        self._offset_sec = max(offset for _, offset in self._offsets)

    def now_sec(self) -> float | None:
        """Return the tracker's time [s since 1970], or None before its first message."""
        return None if self._offset_sec is None else self._local_sec() + self._offset_sec
