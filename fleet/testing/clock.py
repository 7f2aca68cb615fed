"""A clock that tests advance."""

from __future__ import annotations


class FakeClock:
    """A `fleet.base.clock.Clock` that stands still until it is advanced."""

    def __init__(self, now_sec: float = 1_000_000.0) -> None:
        self._now_sec = now_sec

    def now_sec(self) -> float:
        return self._now_sec

    def monotonic_sec(self) -> float:
        return self._now_sec

    def advance(self, sec: float) -> None:
        """Advance the time."""
        if sec < 0:
            raise ValueError(f"time does not go back by {-sec} s")
        self._now_sec += sec
