"""Grants on devices that are booked. Pure.

A lease is granted on a booked device only if it ends before the booking starts, or is a batch lease, which gives way
in time. A longer lease takes a device that no booking needs, since other devices can serve its bookings.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from fleet.domain.health import HealthState
from fleet.domain.leases import LeaseClass, LeaseTerms
from fleet.tracker.core import choosing, health
from fleet.tracker.core.booking_plan import Search
from fleet.tracker.core.booking_table import Slot
from fleet.tracker.core.records import RequestEntry
from fleet.tracker.core.tables import Tables

_MAX_HELD = 256
"""Number of booked devices examined for one request."""
_MAX_MOVED = 2
"""Number of attempts to move the bookings of a device for one request."""
_MAX_MOVE_EXAMINED = 100
"""Number of devices examined to move the bookings of one."""


def fits(tables: Tables, device_name: str, terms: LeaseTerms, at_sec: float | None = None) -> bool:
    """Return True if a lease on a device leaves its bookings alone.

    Args:
        at_sec: moment of the grant; None: now.
    """
    if device_name not in tables.bookings.by_device:  # asked for each lease that may give way
        return True
    limit_sec = tables.bookings.limit_sec(device_name)
    from_sec = tables.now_sec if at_sec is None else at_sec
    if terms.lease_class is LeaseClass.BATCH and limit_sec - from_sec > tables.accounts.policy.yield_grace_sec:
        return True
    return from_sec + (terms.max_sec or tables.limits.max_duration_sec) <= limit_sec


def next_for(tables: Tables, name: str) -> RequestEntry | None:
    """Return the request that a free device with bookings serves next."""
    if own := tables.bookings.active_on(name, tables.now_sec):
        first = next(iter(own.booking.requests.values()), None)
        is_blocked = first is not None and _is_blocked(tables, first)
        return None if own.lease_name or is_blocked else first
    first = tables.waiting.next_for(name, tables.now_sec)
    if first is None or fits(tables, name, first.terms) or move_away(tables, name, _ends_sec(tables, first)):
        return first
    left_sec = tables.bookings.limit_sec(name) - tables.now_sec
    takes_batch = left_sec > tables.accounts.policy.yield_grace_sec
    return tables.waiting.next_within(name, left_sec, tables.limits.max_duration_sec, takes_batch=takes_batch)


def take_free(tables: Tables, request: RequestEntry, preferred: str) -> str | None:
    """Return a free device for a single request, and hold those that its lease would keep from a booking."""
    terms = request.terms
    takes_suspects = health.is_served(HealthState.SUSPECT, terms)
    while True:
        name = choosing.take_free(
            tables.matching, terms.selector, tables.now_sec, preferred, takes_suspects=takes_suspects
        )
        if name is None or fits(tables, name, terms):
            return name
        tables.bookings.hold(name)


def held_for(tables: Tables, request: RequestEntry) -> str | None:
    """Return a free booked device that a single request may use: its lease ends in time, or no booking needs it."""
    group, needed = tables.matching.group(request.terms.selector), []
    for name in islice(tables.bookings.held, _MAX_HELD):
        device = tables.devices.get(name)
        if device is None or not device.can_serve or name not in group.devices or name in tables.sets.held:
            continue
        if not health.is_served(device.mark.state, request.terms):
            continue
        if fits(tables, name, request.terms):
            return name
        needed.append(name)
    until_sec = _ends_sec(tables, request)
    return next((name for name in needed[:_MAX_MOVED] if move_away(tables, name, until_sec)), None)


def move_away(tables: Tables, name: str, until_sec: float) -> bool:
    """Move a device's bookings that start before a moment to other devices; return False if that is impossible."""
    slots = [slot for slot in tables.bookings.by_device[name] if slot.booking.entry.starts_at_sec < until_sec]
    if any(slot.lease_name or slot.booking.is_active(tables.now_sec) for slot in slots):
        return False
    search = Search(tables, avoided=tables.sets.held.keys() | {name}, is_gentle=True, most=_MAX_MOVE_EXAMINED)
    if not search.place(slots):
        return False
    commit(tables, search.moves)
    return True


def commit(tables: Tables, moves: Mapping[Slot, str]) -> None:
    """Move planned slots to other devices, or off their device where the name is empty."""
    for slot, name in moves.items():
        former = slot.device_name
        tables.bookings.plan(slot, name, tables.now_sec)
        tables.changes.bookings[slot.booking.name] = slot.booking.entry
        tables.version += 1
        for each in filter(None, (former, name)):
            update_hold(tables, each)
        withdraw(tables, former, slot.booking.name)


def withdraw(tables: Tables, device_name: str, booking_name: str) -> None:
    """Withdraw the demand of a booking for a device. Idempotent."""
    device = tables.devices.get(device_name)
    lease = device.lease if device is not None else None
    wanted = tables.yields.get(lease.name) if lease is not None else None
    if wanted is not None and wanted.booking == booking_name:
        tables.forget_yield(wanted.lease_name)


def update_hold(tables: Tables, name: str) -> None:
    """Hold a device while its next booking is near; offer it again otherwise."""
    bookings = tables.bookings
    if not is_open(tables, name):
        tables.matching.set_busy(name)
    elif bookings.held.pop(name, name) is None:
        tables.sets.offered.append(name)


def is_open(tables: Tables, name: str) -> bool:
    """Return True if any request may get a free device; otherwise hold the device for its next booking."""
    if tables.bookings.limit_sec(name) - tables.now_sec < tables.limits.max_duration_sec:
        tables.bookings.held[name] = None
        return False
    return True


def _ends_sec(tables: Tables, request: RequestEntry) -> float:
    return tables.now_sec + (request.terms.max_sec or tables.limits.max_duration_sec)


def _is_blocked(tables: Tables, request: RequestEntry) -> bool:
    return tables.accounts.account(request.account).is_blocked(request.terms.lease_class)
