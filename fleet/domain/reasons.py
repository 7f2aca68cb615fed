"""Reasons that people give for an act, shown to everybody whom it concerns."""

from __future__ import annotations

from fleet.base.text import sanitize
from fleet.errors import InvalidRequest

MAX_REASON_CHARS = 500


def checked_reason(reason: str) -> str:
    """Return a reason that may be left out.

    Raises:
        InvalidRequest: it is too long, or has control characters in it.
    """
    if sanitize(reason) != reason:
        raise InvalidRequest("the reason has control characters in it; write one line of text")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidRequest(f"the reason has {len(reason)} characters; at most {MAX_REASON_CHARS} are kept")
    return reason
