"""Moments in the local time of the machine, as people read them."""

from __future__ import annotations

from datetime import datetime

_WEEKDAY_SEC = 6 * 86_400.0
"""A weekday names a moment that is this close."""


def moment_text(at_sec: float, now_sec: float) -> str:
    """Return a moment in local time: "14:00", with the weekday or the date if it is on another day than now."""
    at, now = _local(at_sec), _local(now_sec)
    if at is None or now is None:
        return "?"
    if at.date() == now.date():
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if abs(at_sec - now_sec) < _WEEKDAY_SEC else f"{at:%Y-%m-%d %H:%M}"


def span_text(starts_at_sec: float, ends_at_sec: float, now_sec: float) -> str:
    """Return a time span in local time: "14:00 to 16:00"; the end has a day if it is on another day than the start."""
    return f"{moment_text(starts_at_sec, now_sec)} to {moment_text(ends_at_sec, starts_at_sec)}"


def _local(at_sec: float) -> datetime | None:
    """Return a moment in local time, or None for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_sec)
    except (ValueError, OverflowError, OSError):
        return None
