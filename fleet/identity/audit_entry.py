"""One entry of the audit log, as the tracker writes it and an admin reads it."""

from __future__ import annotations

from dataclasses import dataclass

LEASE_ENDED = "Lease.End"
"""Action of the entry written at the end of a lease."""

DEVICE_MARKED = "Device.Mark"
BOOKING_CHANGED = "Booking.Change"
"""Action of the entry of a mark that the tracker set by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action, performed or refused."""

    at_sec: float
    """On the tracker's clock [s since 1970]."""

    name: str
    role: str
    key_id: str
    peer: str
    action: str
    """The rpc, such as "LeaseService.RevokeLease", `LEASE_ENDED`, `DEVICE_MARKED` or `BOOKING_CHANGED`."""

    subject: str
    """Arguments, as JSON; empty for a stream."""

    outcome: str
    """ "ok", or the class of the error."""
