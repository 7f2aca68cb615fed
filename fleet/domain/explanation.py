"""Full answer to the question why a request waits."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.domain.devices import DeviceState
from fleet.domain.leases import PendingRequest
from fleet.domain.waits import BookingBefore, LeaseBefore, QuotaUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Device that matches a request's selector."""

    device_name: str
    state: DeviceState
    reason: str = ""
    """Why it cannot serve, in a sentence."""
    lease: LeaseBefore | None = None
    free_at_sec: float | None = None
    """Moment at which its lease is expected to end [s since 1970]; None: unknown."""
    booking: BookingBefore | None = None
    """Next booking of the device by another account."""


@dataclass(frozen=True, slots=True)
class Omission:
    """Devices that match a selector without one of its clauses."""

    clause: str
    device_count: int
    free_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A waiting request, the share of its account, and the devices that could serve it."""

    request: PendingRequest
    at_sec: float = 0.0
    """Moment of the answer, on the tracker's clock [s since 1970]."""
    account: str
    weight: float = 1.0
    used_sec: float = 0.0
    """Recent use of the account [device seconds, older ones count less]."""
    share_had: float = 0.0
    """Share of the account in the recent use of all accounts, 0..1."""
    share_due: float = 0.0
    """Share of its weight in those of all accounts that wait or hold leases, 0..1."""
    quota: QuotaUse | None = None
    """Use of the quota of its class; None: it has none."""
    device_count: int = 0
    """Number of matching devices."""
    candidates: tuple[Candidate, ...] = ()
    """Matching devices, the first 50."""
    omissions: tuple[Omission, ...] = ()
    """Every clause of the selector."""
