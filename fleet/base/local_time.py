"""Moments in the local time of the machine, as people read them."""

from __future__ import annotations

from datetime import datetime

_DAY_SEC = 86_400.0
_WEEKDAY_SEC = 6 * _DAY_SEC
"""A weekday names a moment that is this close."""


def moment_text(at_sec: float, now_sec: float) -> str:
    """Return a moment in local time: "14:00", with the weekday or the date if it is more than a day away."""
    at = _local(at_sec)
    if at is None:
        return "?"
    away_sec = abs(at_sec - now_sec)
    if away_sec < _DAY_SEC:
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if away_sec < _WEEKDAY_SEC else f"{at:%Y-%m-%d %H:%M}"


def clock_text(at_sec: float) -> str:
    """Return the local time of day: "14:00"."""
    at = _local(at_sec)
    return "?" if at is None else f"{at:%H:%M}"


def _local(at_sec: float) -> datetime | None:
    """Return a moment in local time, or None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_sec)
    except (ValueError, OverflowError, OSError):
        return None
