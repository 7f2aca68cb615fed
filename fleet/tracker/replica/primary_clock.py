"""The primary's clock, as its standby knows it. It goes on after a takeover."""

from __future__ import annotations

from fleet.base.clock import Clock


class PrimaryClock(Clock):
    """Estimate of the primary's clock, independent of steps of this machine's."""

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._ahead_sec = own.now_sec() - own.monotonic_sec()
        self._is_new_stream = True

    def begin(self) -> None:
        """Note a new stream: the primary may have been started anew, with another time."""
        self._is_new_stream = True

    def learn(self, primary_sec: float) -> None:
        """Take the time of a message."""
        ahead_sec = primary_sec - self._own.monotonic_sec()
        # The message was on its way for a while, so the largest difference is the nearest.
        self._ahead_sec = ahead_sec if self._is_new_stream else max(self._ahead_sec, ahead_sec)
        self._is_new_stream = False

    def now_sec(self) -> float:
        return self._own.monotonic_sec() + self._ahead_sec

    def monotonic_sec(self) -> float:
        return self._own.monotonic_sec()
