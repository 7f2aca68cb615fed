"""Use of the fleet by accounts, devices or classes, from the tracker's history of leases."""

from __future__ import annotations

import enum
from dataclasses import dataclass

LONGEST_SEC = 90 * 86_400.0
"""Age up to which ended leases are kept [s]."""


class UsageKey(enum.StrEnum):
    """Subject of a row. The names are those of fleet.v1.UsageKey without their prefix."""

    ACCOUNT = "account"
    DEVICE = "device"
    CLASS = "class"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """Ended leases of one account, device or class."""

    key: str
    holder: str = ""
    """Holder of the latest lease; for accounts."""
    lease_count: int
    device_sec: float
    wait_sec: float | None = None
    """Mean wait before a grant; None if no wait is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Use since a moment. Live leases count when they end."""

    since_sec: float
    """Moment on the tracker's clock [s since 1970]."""
    rows: tuple[UsageRow, ...] = ()
    """Largest use first."""

    def share(self, row: UsageRow) -> float:
        """Return the share of a row in the device seconds of all rows."""
        total_sec = sum(each.device_sec for each in self.rows)
        return row.device_sec / total_sec if total_sec else 0.0
