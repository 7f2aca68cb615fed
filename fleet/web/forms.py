"""Reads forms: bounded, and each field once."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from urllib.parse import parse_qsl

from fleet.base.moments import parse_moment
from fleet.base.text import sanitize
from fleet.domain.bookings import check_count, check_length, checked_start
from fleet.domain.leases import LONGEST_SEC
from fleet.domain.selectors import parse_selector
from fleet.errors import InvalidRequest

MOST_BYTES = 16 * 1024
_MOST_FIELDS = 16
_TYPE = "application/x-www-form-urlencoded"
_MOST_REASON_CHARS = 500

Form = Mapping[str, str]


async def read_form(content_type: str, chunks: AsyncIterator[bytes]) -> Form:
    """Read the body of a request.

    Raises:
        InvalidRequest: it is no form, or too large.
    """
    if content_type.partition(";")[0].strip().lower() != _TYPE:
        raise InvalidRequest(f"a form is sent as {_TYPE}")
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > MOST_BYTES:
            raise InvalidRequest(f"a form has at most {MOST_BYTES} bytes")
    return parse_form(bytes(body))


def parse_form(body: bytes) -> Form:
    """Return the fields of a form.

    Raises:
        InvalidRequest: it is malformed, has too many fields, or one twice.
    """
    try:
        pairs = parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:  # also UnicodeDecodeError
        raise InvalidRequest(f"the form cannot be read: {error}") from error
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise InvalidRequest("a field of the form is there twice")
    return fields


def reason_in(form: Form) -> str:
    """Return the reason in a form, as one line."""
    return sanitize(form.get("reason", "")).strip()[:_MOST_REASON_CHARS]


def booking_in(form: Form, now_sec: float) -> tuple[str, float, float, int]:
    """Return selector, start, length [s] and number of devices of a booking.

    Args:
        now_sec: the current time [s since 1970].

    Raises:
        InvalidRequest: a field is missing or invalid.
    """
    selector = str(parse_selector(form.get("selector", "")))
    starts_at_sec = checked_start(parse_moment(form.get("start", ""), now_sec), now_sec)
    length_sec = _number(form, "hours") * 3600.0
    check_length(length_sec, LONGEST_SEC)
    count = int(_number(form, "count"))
    check_count(count)
    return selector, starts_at_sec, length_sec, count


def _number(form: Form, name: str) -> float:
    try:
        found = float(form.get(name, ""))
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise InvalidRequest(f"the field {name} is no number")
    return found
