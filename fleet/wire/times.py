"""Times and durations on the wire."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fleet.errors import InvalidRequest

_LONGEST_SEC = 315_576_000_000
"""10,000 years, the limit of a Duration."""


def timestamp(sec: float) -> Timestamp:
    """Convert seconds since 1970 to a Timestamp."""
    nanos = round(sec * 1e9)
    return Timestamp(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def optional_timestamp(sec: float | None) -> Timestamp | None:
    """Convert seconds since 1970 to a Timestamp; None or 0 give None, which leaves a field unset."""
    return timestamp(sec) if sec else None


def timestamp_sec(message: Timestamp) -> float:
    """Convert a Timestamp to seconds since 1970."""
    return message.seconds + message.nanos / 1e9


def duration(sec: float) -> Duration:
    """Convert seconds to a Duration.

    Raises:
        InvalidRequest: not a number, or more than a Duration can say.
    """
    if not abs(sec) <= _LONGEST_SEC:
        raise InvalidRequest(f"{sec:g} s is no length of time")
    nanos = round(sec * 1e9)
    return Duration(seconds=nanos // 1_000_000_000, nanos=nanos % 1_000_000_000)


def optional_duration(sec: float | None) -> Duration | None:
    """Convert seconds to a Duration; None gives None, which leaves a field unset."""
    return None if sec is None else duration(sec)


def duration_sec(message: Duration) -> float:
    """Convert a Duration to seconds, through whole nanoseconds: a sum of two floats may be off in its last digit."""
    return (message.seconds * 10**9 + message.nanos) / 1e9
