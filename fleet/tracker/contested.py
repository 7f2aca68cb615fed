"""Rate-limits warnings about two agents claiming one device name."""

from __future__ import annotations

import math

from fleet.base.clock import Clock

_AGAIN_SEC = 600.0
"""An agent that is refused tries again every few seconds, for as long as nobody gives it another name."""


class ContestedNames:
    """Device names that another agent recently claimed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_at_sec: dict[str, float] = {}

    def is_news(self, device_name: str) -> bool:
        """Tell whether to report that another agent claims this name; at most once in ten minutes."""
        now = self._clock.monotonic_sec()
        if now < self._told_at_sec.get(device_name, -math.inf) + _AGAIN_SEC:
            return False
        self._told_at_sec = {name: at for name, at in self._told_at_sec.items() if now < at + _AGAIN_SEC}
        self._told_at_sec[device_name] = now
        return True
