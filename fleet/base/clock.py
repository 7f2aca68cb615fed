"""Source of time for the whole fleet.

There are two readings, never mixed: `now_sec` (wall clock, seconds since 1970, used in leases and journals) and
`monotonic_sec` (only differences mean something). The wall reading of a `SystemClock` is taken once and advanced by
the monotonic clock, so a step of the machine's clock while a process runs neither ends nor lengthens a lease.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now_sec(self) -> float:
        """Wall clock [s since 1970, UTC]."""

    def monotonic_sec(self) -> float:
        """Monotonic clock [s]."""


class SystemClock:
    """The machine's clock, without steps while the process lives."""

    def __init__(self) -> None:
        self._offset_sec = time.time() - time.monotonic()

    def now_sec(self) -> float:
        return time.monotonic() + self._offset_sec

    def monotonic_sec(self) -> float:
        return time.monotonic()
