"""Agents as witnesses that a tracker is gone: each that dials the standby found the tracker away. Pure.

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
    """Agents that have dialled the standby, by key. Times are on a monotonic clock [s]."""

    def __init__(self) -> None:
        self._dialled: dict[str, float] = {}

    def note(self, key_id: str, now_sec: float) -> None:
        """Note that an agent has dialled."""
        self._dialled[key_id] = now_sec

    def agree(self, attached: Set[str], silent_sec: float, now_sec: float) -> bool:
        """Tell whether a silent tracker is gone: most of the agents that were attached have dialled lately."""
        if silent_sec < SILENCE_SEC or len(attached) < LEAST_AGENTS:
            return False
        recent = sum(1 for key_id in attached if now_sec - self._dialled.get(key_id, -_RECENT_SEC) < _RECENT_SEC)
        return 2 * recent > len(attached)
