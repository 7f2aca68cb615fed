"""Warning about schedules whose times are not proven."""

from __future__ import annotations

from collections.abc import Iterable

from fleet.base.quantities import count_text
from fleet.library.values import Record

UNPROVEN = "they are the kernels' own claims; to prove those of the library: fleet tune MODEL --trials 0"


def unproven_line(unproven: int, total: int, reason: str = "") -> str:
    """Return the warning; empty if all times are proven.

    Args:
        reason: reason for unproven times; empty if no proof was attempted.
    """
    if not unproven:
        return ""
    return f"times not proven for {unproven} of {count_text(total, 'schedule')}: {reason or UNPROVEN}"


def line_of(records: Iterable[Record]) -> str:
    """Return the warning for the used records."""
    used = list(records)
    return unproven_line(sum(record.needs_proof for record in used), len(used))
