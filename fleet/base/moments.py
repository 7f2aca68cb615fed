"""Moments as people write them: a time of day, a date with a time, or a duration from now. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta, tzinfo

from fleet.base.quantities import parse_duration
from fleet.errors import InvalidRequest

_DATES = ("%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M")


def parse_moment(text: str, now_sec: float, zone: tzinfo | None = None) -> float:
    """Return the next or present moment that a text names [s since 1970]: "14:00", "2026-11-30 14:00" or "2h" from now.

    Args:
        text: a time of day is today's, or tomorrow's if its minute has passed.
        now_sec: the current time [s since 1970].
        zone: the reader's time zone; None: the machine's.

    Raises:
        InvalidRequest: it is none of these.
    """
    text = text.strip()
    if ":" not in text and (duration_sec := parse_duration(text)) is not None:
        return now_sec + duration_sec
    now = datetime.fromtimestamp(now_sec, zone).replace(tzinfo=None)
    if (time_of_day := _read(text, "%H:%M")) is not None:
        found = datetime.combine(now.date(), time_of_day.time())
        has_passed = found < now.replace(second=0, microsecond=0)
        return _seconds(found + timedelta(days=1) if has_passed else found, zone)
    for form in _DATES:
        if (found_date := _read(text, form)) is not None:
            return _seconds(found_date, zone)
    raise InvalidRequest(f"{text[:50]!r} is no moment; write it like 14:00, '2026-11-30 14:00' or 2h")


def _read(text: str, form: str) -> datetime | None:
    try:
        return datetime.strptime(text, form)
    except ValueError:
        return None


def _seconds(moment: datetime, zone: tzinfo | None) -> float:
    return moment.replace(tzinfo=zone).timestamp()
