"""Agents as witnesses that a tracker is gone: each that asks the standby found the tracker away or silent. Pure.

The standby's own view is not enough: its network may be cut off while everybody else reaches the tracker.
"""

from __future__ import annotations

from collections.abc import Set

SILENCE_SEC = 5.0
"""Silence of the tracker towards the standby before agents count."""
LEAST_AGENTS = 3
"""With fewer attached agents, only a person decides."""
_RECENT_SEC = 12.0
"""Agents dial again after at most five seconds, and then both trackers."""


class Witnesses:
    """Agents that have asked the standby, by key. Times are on a monotonic clock [s]."""

    def __init__(self) -> None:
        self._asked: dict[str, float] = {}

    def note(self, key_id: str, now_sec: float) -> None:
        """Note that an agent has asked."""
        self._asked[key_id] = now_sec

    def agree(self, attached: Set[str], silent_sec: float, now_sec: float) -> bool:
        """Tell whether a silent tracker is gone: most of the agents that were attached have asked lately.

        Those from before the silence do not count: the tracker answered the standby since.
        """
        if silent_sec < SILENCE_SEC or len(attached) < LEAST_AGENTS:
            return False
        return 2 * self.count(attached, silent_sec, now_sec) > len(attached)

    def count(self, attached: Set[str], silent_sec: float, now_sec: float) -> int:
        """Return the number of these agents that have asked lately, during the silence."""
        since_sec = now_sec - min(silent_sec, _RECENT_SEC)
        return sum(1 for key_id in attached if self._asked.get(key_id, since_sec) > since_sec)
