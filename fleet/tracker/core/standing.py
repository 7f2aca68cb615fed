"""Position of a request in the queue, and the reason why it waits, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.domain.health import HealthState
from fleet.domain.lease_class import LeaseClass
from fleet.domain.narrowing import ClauseCount
from fleet.domain.waits import QuotaUse, WaitReason
from fleet.tracker.core import booked
from fleet.tracker.core.accounts import Account
from fleet.tracker.core.health import closed_states
from fleet.tracker.core.records import BookingEntry, DeviceEntry, LeaseEntry, RequestEntry
from fleet.tracker.core.tables import Tables

_EXAMINED_DEVICES = 8
"""Number of matching devices examined for the reason."""
_SHOWN_LEASES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of one waiting request at one moment."""

    position: int
    """Number of requests that are served before it."""
    reason: WaitReason
    at_sec: float
    match_count: int = 0
    """Number of devices that match its selector; the size of a set."""
    device_name: str = ""
    """Device that the reason is about; empty: none."""
    detail: str = ""
    quota: QuotaUse | None = None
    ready_count: int = 0
    """Number of free devices of a set."""
    leases: Sequence[LeaseEntry] = ()
    """Leases of the first matching devices."""
    clauses: Sequence[ClauseCount] = ()
    booking: BookingEntry | None = None
    """Booking that the reason is about."""

    @property
    def gist(self) -> tuple[object, ...]:
        """Fields whose changes are sent to clients."""
        leases = (lease.name for lease in self.leases)
        booking = self.booking.name if self.booking else ""
        return self.position, self.reason, self.device_name, self.ready_count, self.quota, booking, *leases


def standing_of(tables: Tables, request: RequestEntry) -> Standing:
    """Return the position of a request and the reason why it is not served now."""
    position, selector, now = tables.positions.of(request, tables.now_sec), request.terms.selector, tables.now_sec
    if tables.journal_trouble:
        trouble = tables.journal_trouble
        return Standing(position=position, reason=WaitReason.JOURNAL_FAILED, at_sec=now, detail=trouble)
    account = tables.accounts.account(request.account)
    if account.is_blocked(request.terms.lease_class, len(request.terms.selectors)):
        quota = quota_use(account, request.terms.lease_class)
        return Standing(position=position, reason=WaitReason.QUOTA, at_sec=now, quota=quota)
    if request.terms.also:
        return _of_set(tables, request)
    if request.terms.booking:
        return _of_booking(tables, request)
    if states := closed_states(tables, request):
        return Standing(
            position=position,
            reason=WaitReason.MARKED,
            at_sec=now,
            match_count=states.total(),
            detail=_states_text(states),
        )
    devices = [tables.devices[name] for name in tables.matching.names(selector, _EXAMINED_DEVICES)]
    if not devices:
        clauses = tables.matching.kept_narrowing(selector)
        return Standing(position=position, reason=WaitReason.NO_DEVICE, at_sec=now, clauses=clauses)
    is_booked = next((device for device in devices if _is_booked(tables, device, request)), None)
    device = is_booked or next((device for device in devices if device.lease), devices[0])
    reason = WaitReason.BOOKED if is_booked else _obstacle(device)
    return Standing(
        position=position,
        reason=reason,
        at_sec=now,
        match_count=tables.matching.count(selector),
        device_name=device.name,
        detail=device.reason if reason is WaitReason.FAULTED else "",
        leases=tuple(device.lease for device in devices if device.lease)[:_SHOWN_LEASES],
        booking=next_booking(tables, device) if is_booked else None,
    )


def next_booking(tables: Tables, device: DeviceEntry) -> BookingEntry | None:
    """Return the next or current booking of a device."""
    slots = tables.bookings.by_device.get(device.name)
    return slots[0].booking.entry if slots else None


def _is_booked(tables: Tables, device: DeviceEntry, request: RequestEntry) -> bool:
    """Return True if a free device does not serve a request because of a booking."""
    return device.can_serve and not booked.fits(tables, device.name, request.terms)


def _of_booking(tables: Tables, request: RequestEntry) -> Standing:
    booking = tables.bookings.entries.get(request.terms.booking)
    keys = list(booking.requests) if booking else []
    return Standing(
        position=keys.index(request.key) if request.key in keys else 0,
        reason=WaitReason.BOOKED,
        at_sec=tables.now_sec,
        match_count=len(booking.slots) if booking else 0,
        booking=booking.entry if booking else None,
    )


def _states_text(states: Counter[HealthState]) -> str:
    if len(states) == 1:
        return f"{'all ' if states.total() > 1 else ''}{next(iter(states))}"
    return ", ".join(f"{number} {state}" for state, number in states.items())


def quota_use(account: Account, lease_class: LeaseClass) -> QuotaUse:
    """Return the present use of an account's quota in a class."""
    quota = account.quota(lease_class)
    return QuotaUse(
        account=account.name,
        lease_class=lease_class,
        leases=account.leases[lease_class],
        most_leases=quota.leases,
        day_sec=account.day_sec[lease_class],
        most_day_sec=quota.device_sec_per_day,
    )


def _of_set(tables: Tables, request: RequestEntry) -> Standing:
    order = [entry.request.key for entry in tables.sets.in_order(tables.now_sec)]
    entry = tables.sets.entries.get(request.key)
    devices = [device for name in entry.devices if (device := tables.devices.get(name))] if entry else []
    missing = [device for device in devices if not device.can_serve]
    return Standing(
        position=order.index(request.key) if entry else 0,
        reason=WaitReason.SET,
        at_sec=tables.now_sec,
        match_count=len(request.terms.selectors),
        ready_count=len(devices) - len(missing),
        device_name=missing[0].name if missing else "",
        leases=tuple(device.lease for device in missing if device.lease)[:_SHOWN_LEASES],
    )


def _obstacle(device: DeviceEntry) -> WaitReason:
    if device.lease:
        return WaitReason.LEASED
    if not device.is_attached:
        return WaitReason.OFFLINE
    return WaitReason.QUEUED if device.is_healthy else WaitReason.FAULTED
