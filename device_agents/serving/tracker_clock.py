"""The tracker's time as the agent knows it: what the tracker said, plus the time since. Wall clocks play no part.

Every message of the tracker carries its time. Subtracting this machine's time since boot at arrival gives the offset
between the two clocks, minus the delay of the message. So the largest of the recent offsets had the least delay, and
is the best. The clock keeps running while the tracker is down. A new connection starts over: another tracker, or the
same one after a restart, may have another clock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_SEC = 300.0
"""How long offsets are kept: crystals drift by up to 100 ppm, which is 30 ms in this time."""


def boottime_sec() -> float:
    """Return the clock that never goes back and goes on while the machine sleeps [s]."""
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

    def restart(self) -> None:
        """Begin a new connection; the old estimate serves until the tracker's first message."""
        self._is_restarted = True

    def learn(self, tracker_sec: float) -> None:
        """Take the time of a message that just arrived."""
        now = self._local_sec()
        if self._is_restarted:
            self._offsets.clear()
            self._is_restarted = False
        self._offsets.append((now, tracker_sec - now))
        while self._offsets[0][0] < now - _WINDOW_SEC:
            self._offsets.popleft()
        self._offset_sec = max(offset for _, offset in self._offsets)

    def now_sec(self) -> float | None:
        """Return the tracker's time [s since 1970], or None before its first message."""
        return None if self._offset_sec is None else self._local_sec() + self._offset_sec
