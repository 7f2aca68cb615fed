"""Times at which the reference kernel runs on an idle device: after an occasion, and every six idle hours.

An occasion is the agent's attachment to its tracker, or the end of a fault. One run says little, since another process
may disturb it. So each occasion has a series of runs over half an hour, for which the tracker compares siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

SERIES_SEC = (10.0, 600.0, 1_200.0, 1_860.0)
"""Runs after an occasion. The first one leaves time for a lease that the device was attached for."""
EACH_SEC = 6 * 3_600.0


class IdleSchedule:
    """Schedule of one device. Pure; callers pass a monotonic time [s]."""

    def __init__(self, series_sec: Sequence[float] = SERIES_SEC, each_sec: float = EACH_SEC) -> None:
        self._series_sec = tuple(series_sec)
        self._each_sec = each_sec
        self._began_sec = math.inf
        """Start of the present series, or of the next one."""
        self._runs = 0
        """Runs of the present series so far."""
        self._is_leased = False
        self._is_owed = False
        """True if an occasion came under a lease."""

    def begin(self, now_sec: float) -> None:
        """Note an occasion."""
        self._is_owed = self._is_leased
        self._began_sec, self._runs = now_sec, 0

    def lease(self) -> None:
        """Note the start of a lease: its session runs the kernel around candidates."""
        self._is_leased = True

    def release(self, now_sec: float) -> None:
        """Note the end of a lease."""
        self._is_leased = False
        self._began_sec, self._runs = now_sec + (0.0 if self._is_owed else self._each_sec), 0
        self._is_owed = False

    def is_due(self, now_sec: float) -> bool:
        """Tell whether the kernel has to run now."""
        return not self._is_leased and now_sec >= self._began_sec + self._series_sec[self._runs]

    def note_run(self) -> None:
        """Note a run, even one without a result."""
        self._runs += 1
        if self._runs == len(self._series_sec):
            self._began_sec, self._runs = self._began_sec + self._each_sec, 0
