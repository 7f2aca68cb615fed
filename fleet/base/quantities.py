"""Quantities in readable units: measured times, elapsed times, sizes, counts; and durations as people write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

_TIMES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
_MINUTE_SEC, _HOUR_SEC, _DAY_SEC = 60, 3600, 86400
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)", re.ASCII)
_DURATIONS = {"": 1.0, "s": 1.0, "m": float(_MINUTE_SEC), "h": float(_HOUR_SEC), "d": float(_DAY_SEC)}


def time_text(sec: float | None, *, digits: int = 4) -> str:
    """Return a measured time in the unit that suits it: "161.2 us"; "-" for None."""
    return "-" if sec is None else _in_unit(sec, _TIMES, digits)


def elapsed_text(sec: float) -> str:
    """Return an elapsed time in at most two units: "12 s", "3 min", "2 h 05 min" or "4 d 3 h"."""
    sec = max(0, int(sec))
    if sec < _MINUTE_SEC:
        return f"{sec} s"
    if sec < _HOUR_SEC:
        return f"{sec // _MINUTE_SEC} min"
    if sec < _DAY_SEC:
        return f"{sec // _HOUR_SEC} h {sec % _HOUR_SEC // _MINUTE_SEC:02} min"
    return f"{sec // _DAY_SEC} d {sec % _DAY_SEC // _HOUR_SEC} h"


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration such as "90", "90s", "10m", "2h" or "1.5d"; None for other text."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _DURATIONS[match[2]]


def age_text(since_sec: float | None, now_sec: float) -> str:
    """Return the time elapsed since a moment; "-" if it is unknown."""
    return elapsed_text(now_sec - since_sec) if since_sec else "-"


def size_text(size_bytes: int) -> str:
    """Return a size in the unit that suits it: "512 MB"; "-" for 0."""
    return _in_unit(size_bytes, _SIZES, 3) if size_bytes else "-"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: "1 candidate", "8 candidates"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _in_unit(value: float, units: Sequence[tuple[str, float]], digits: int) -> str:
    unit, scale = next((unit for unit in units if value >= unit[1]), units[-1])
    return f"{float(f'{value / scale:.{digits}g}'):g} {unit}"  # 'g' alone would write 161 in two digits as 1.6e+02
