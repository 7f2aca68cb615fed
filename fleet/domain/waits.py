"""Reasons why requests wait, as data, and their sentences for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.base.quantities import elapsed_text
from fleet.domain.accounts import account_text
from fleet.domain.devices import holder_text
from fleet.domain.lease_class import LeaseClass
from fleet.domain.narrowing import ClauseCount


class WaitReason(StrEnum):
    """Obstacle between a request and its grant. The names are those of fleet.v1.WaitReason without their prefix."""

    JOURNAL_FAILED = "JOURNAL_FAILED"
    """No grants are made; `detail` has the journal's error."""
    NO_DEVICE = "NO_DEVICE"
    """All matching devices left the fleet; `clauses` counts the devices that each clause leaves."""
    LEASED = "LEASED"
    OFFLINE = "OFFLINE"
    FAULTED = "FAULTED"
    """`detail` has the fault."""
    QUOTA = "QUOTA"
    """A quota of its account is used up."""
    SET = "SET"
    """Not all devices of a set are free; `device_name` is one that is awaited, "" until it is the set's turn."""
    MARKED = "MARKED"
    """All matching devices are marked so that they do not serve it; `detail` has the marks."""
    BOOKED = "BOOKED"
    """The device is booked, so that only a lease that ends before may begin. Without a device: the booking of the
    request itself has not started, or lacks devices."""
    QUEUED = "QUEUED"
    """The device is free, and other requests come first."""


class QuotaLimit(StrEnum):
    """Limit of a quota. The names are those of fleet.v1.QuotaLimit without their prefix."""

    LEASES = "LEASES"
    """Leases at once."""
    DEVICE_TIME = "DEVICE_TIME"
    """Device seconds of a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """Use of the quota of an account in one class."""

    account: str
    lease_class: LeaseClass
    leases: int
    most_leases: float = math.inf
    day_sec: float = 0.0
    """Device seconds of today."""
    most_day_sec: float = math.inf

    @property
    def limit(self) -> QuotaLimit | None:
        """Limit that is reached; None: no limit is."""
        if self.leases >= self.most_leases:
            return QuotaLimit.LEASES
        return QuotaLimit.DEVICE_TIME if self.day_sec >= self.most_day_sec else None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseBefore:
    """Live lease of a device that a request waits for."""

    device_name: str
    holder: str = ""
    holder_note: str = ""
    """Name chosen by the client; empty if it equals the certificate's name."""
    account: str = ""
    """Account that it is charged to; empty if it is the holder's own key."""
    lease_class: LeaseClass = LeaseClass.NORMAL
    held_sec: float = 0.0

    @property
    def held_by(self) -> str:
        """The holder, with its note and account."""
        holder = holder_text(self.holder, self.holder_note)
        return f"{holder} for {account_text(self.account)}" if self.account else holder


@dataclass(frozen=True, slots=True, kw_only=True)
class BookingBefore:
    """Booking of a device that a request waits for."""

    name: str
    """ "bookings/<id>"."""
    holder: str = ""
    """Its author."""
    starts_in_sec: float = 0.0
    """Time until its start; 0 if it has started."""
    ends_in_sec: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Reason why a request is not served now."""

    reason: WaitReason
    match_count: int = 0
    """Number of devices that match its selector; the size of a set."""
    ready_count: int = 0
    """Number of free devices of a set."""
    device_name: str = ""
    """Device that the reason is about; empty: none."""
    detail: str = ""
    quota: QuotaUse | None = None
    leases: Sequence[LeaseBefore] = ()
    """Leases of matching devices; not all if there are very many."""
    clauses: Sequence[ClauseCount] = ()
    booking: BookingBefore | None = None
    """With BOOKED."""


def wait_text(wait: Wait) -> str:
    """Return a sentence that explains a wait."""
    others = f"none of {wait.match_count} matching devices is free: " if wait.match_count > 1 else ""
    match wait.reason:
        case WaitReason.JOURNAL_FAILED:
            return wait.detail
        case WaitReason.NO_DEVICE:
            counts = "; ".join(f"{each.clause}: {each.device_count or 'none'}" for each in wait.clauses)
            return "no device matches any more" + (f": {counts}" if counts else "")
        case WaitReason.QUOTA:
            return quota_text(wait.quota) if wait.quota else "a quota of its account is used up"
        case WaitReason.LEASED:
            return f"{others}{wait.device_name} is held {_holding(wait) or 'by another lease'}"
        case WaitReason.OFFLINE:
            return f"{others}{wait.device_name} is offline, its agent is not attached"
        case WaitReason.FAULTED:
            return f"{others}{wait.device_name} is faulted: {wait.detail}"
        case WaitReason.SET if not wait.device_name:
            return f"the {wait.match_count} devices of the set are not held for it yet: others come first"
        case WaitReason.SET:
            held = f"held {holding}" if (holding := _holding(wait)) else "not free"
            return (
                f"{wait.ready_count} of {wait.match_count} devices of the set are ready: {wait.device_name} is {held}"
            )
        case WaitReason.MARKED:
            boards = "board suits" if wait.match_count == 1 else "boards suit"
            return f"{wait.match_count} {boards}{':' if wait.detail[:1].isdigit() else ','} {wait.detail}"
        case WaitReason.BOOKED:
            return booked_text(wait, others)
        case WaitReason.QUEUED:
            return f"{others}{wait.device_name} is about to serve others"


def booked_text(wait: Wait, others: str) -> str:
    """Return a sentence about the booking that a request waits for."""
    if wait.booking is None:
        return f"{others}{wait.device_name} is booked"
    is_coming = wait.booking.starts_in_sec > 0
    if wait.device_name:
        hint = "; a lease that ends before is granted at once" if is_coming else ""
        return f"{others}{wait.device_name} is {booking_text(wait.booking)}{hint}"
    if is_coming:
        return f"its booking starts in {elapsed_text(wait.booking.starts_in_sec)}"
    return "no device of its booking is free: all are leased, or cannot be had now"


def booking_text(booking: BookingBefore) -> str:
    """Return the holder and the time of a booking: "booked by ann@lab in 20 min"."""
    if booking.starts_in_sec > 0:
        return f"booked by {booking.holder} in {elapsed_text(booking.starts_in_sec)}"
    return f"booked by {booking.holder} for {elapsed_text(booking.ends_in_sec)} more"


def _holding(wait: Wait) -> str:
    """Return by whom the device that a reason is about is held, and for how long; empty if no lease is known."""
    lease = next((each for each in wait.leases if each.device_name == wait.device_name), None)
    return f"by {lease.held_by} for {lease.held_sec:.0f} s" if lease else ""


def quota_text(use: QuotaUse) -> str:
    """Return a sentence that names the limit of a used-up quota."""
    if use.limit is QuotaLimit.DEVICE_TIME:
        used = f"{use.day_sec / 3600:.1f} of {use.most_day_sec / 3600:g} device hours of today"
    else:
        used = f"{use.leases} of {use.most_leases:g} leases at once"
    return f"its account has used up the quota of the class {use.lease_class}: {used}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Moments at which a request is likely to be served [s since 1970, the tracker's clock]."""

    from_sec: float
    """One request in ten is served earlier."""
    expected_sec: float
    """The most likely moment."""
    by_sec: float
    """One request in ten is served later."""


_UNSERVED = frozenset({WaitReason.NO_DEVICE, WaitReason.OFFLINE, WaitReason.FAULTED, WaitReason.MARKED})


def forecast_text(forecast: Forecast | None, now_sec: float, wait: Wait | None = None) -> str:
    """Return the times of a forecast: "in 5 min, likely 3 min to 9 min".

    Args:
        wait: tells why there is no forecast.
    """
    if forecast is None:
        return f"not known: {_unknown_text(wait)}"
    rests = [max(sec - now_sec, 0.0) for sec in (forecast.expected_sec, forecast.from_sec, forecast.by_sec)]
    expected, likely_from, likely_by = map(elapsed_text, rests)
    return f"in {expected}, likely {likely_from} to {likely_by}"


def _unknown_text(wait: Wait | None) -> str:
    if wait is not None and wait.reason is WaitReason.QUOTA:
        return "a quota is used up"
    if wait is not None and wait.reason in _UNSERVED:
        return "no device can serve it now"
    return "too few leases have ended"
