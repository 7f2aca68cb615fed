"""Life cycle of a booking: made, kept free, used, released. Pure.

Each round visits the bookings one at a time, so that no turn gets long: a visit searches devices for those that left,
asks leases in the way to end, and releases devices that nobody uses.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

from fleet.domain.bookings import (
    NOTICE_SEC,
    UNUSED_SEC,
    booking_id,
)
from fleet.domain.leases import LeaseClass
from fleet.errors import (
    Cancelled,
    FleetError,
    NotFound,
)
from fleet.tracker.core import booked, leases, yielding
from fleet.tracker.core import events as ev
from fleet.tracker.core.booking_admission import admit, number_of
from fleet.tracker.core.booking_plan import Search
from fleet.tracker.core.booking_table import PlannedBooking, Slot
from fleet.tracker.core.records import BookingEntry, LeaseEntry, RequestEntry, YieldEntry
from fleet.tracker.core.tables import Tables

_LOOK_SEC = 1.0
"""Interval of the rounds that visit all bookings."""
_LOOK_EACH_SEC = 0.01
"""Rounds of many bookings are this far apart for each of them."""
_STEP_SEC = 1e-3
"""Interval of the steps of a round, so that other events get their turn."""
_AWAY_SEC = 30.0
"""A device is replaced after its agent has been away for this time. Agents reconnect, also after a restart of the
tracker."""
_MOST_DUE = 8
"""Number of due bookings that one event takes up."""
_RETRY_SEC = 5.0
"""Interval of the searches for a device that cannot be had."""


def book(tables: Tables, event: ev.Book) -> None:
    """Make a booking, or repeat the answer to an earlier call."""
    for booking in tables.bookings.entries.values():
        entry = booking.entry
        if event.request_id and (entry.request_id, entry.key_id) == (event.request_id, event.key_id):
            tables.effects.append(ev.Booked(entry))
            return
    try:
        booking = admit(tables, event)
    except FleetError as error:
        tables.effects.append(ev.BookingRefused(type(error), str(error)))
        return
    _set_moment(tables, booking)
    tables.bookings.look_sec = tables.now_sec
    tables.effects.append(ev.Booked(booking.entry))


def cancel(tables: Tables, event: ev.CancelBooking) -> None:
    """End a booking. Its leases go on, as any other."""
    booking = tables.bookings.entries.get(event.name)
    if booking is not None:
        entry = booking.entry
        _end(tables, booking, Cancelled, f"{entry.name} was cancelled")
        tables.effects.append(ev.BookingCancelled(entry))


def begin(tables: Tables, request: RequestEntry) -> None:
    """Serve a request with a booking, or have it wait for the start or for a device."""
    booking = tables.bookings.entries[request.terms.booking]
    booking.requests[request.key] = request
    _serve_own(tables, booking)
    if request.key in booking.requests:
        tables.effects.append(ev.Queued(request.client_id, request))


def restore(tables: Tables, entries: Iterable[BookingEntry]) -> None:
    """Restore the bookings of the journal, on the devices that were planned, as far as they are known."""
    for entry in sorted(entries, key=lambda each: (each.booked_at_sec, each.name)):
        names, since_sec = entry.device_names, _restored_since_sec(entry, tables.now_sec)
        booking = tables.bookings.add(entry)
        tables.bookings.last_number = max(tables.bookings.last_number, number_of(entry.name))
        for slot, name, unused_since_sec in zip(booking.slots, names, since_sec, strict=True):
            others = tables.bookings.by_device.get(name, ())
            is_free = name in tables.devices and not any(slot.overlaps(other) for other in others)
            tables.bookings.plan(slot, name if is_free else "", tables.now_sec)
            slot.unused_since_sec = unused_since_sec
            if is_free:
                booked.update_hold(tables, name)
        booking.note_slots()
        if entry.device_names != names:
            tables.changes.bookings[entry.name] = entry
        _set_moment(tables, booking)
        tables.timers.set(("bookings",), tables.now_sec, _wake)
    for lease in tables.leases.values():
        tables.bookings.note_grant(lease)
    for booking in tables.bookings.entries.values():
        _note_lost(tables, booking)


def _restored_since_sec(entry: BookingEntry, now: float) -> Sequence[float]:
    """Return the moment from which each device counts as unused. Its clients have time to come back first."""
    if len(entry.unused_since_sec) != len(entry.device_names):  # the journal is of an older tracker
        return [now] * len(entry.device_names)
    least_sec = now - UNUSED_SEC + _AWAY_SEC
    return [min(max(sec, least_sec), now) for sec in entry.unused_since_sec]


def advance(tables: Tables) -> None:
    """Visit bookings, one at a time. Called with every event."""
    table = tables.bookings
    if tables.journal_trouble or not table.entries:
        tables.timers.cancel(("bookings",))
        if not table.entries:
            table.moments.clear()
        return
    _take_due(tables)
    if not table.unvisited and table.look_sec <= tables.now_sec:
        table.unvisited = list(table.entries)
        table.look_sec = tables.now_sec + max(_LOOK_SEC, _LOOK_EACH_SEC * len(table))
    if table.unvisited:
        _visit(tables, table.unvisited.pop())
    next_sec = min(table.look_sec, table.moments[0][0]) if table.moments else table.look_sec
    next_sec = max(-math.inf if table.unvisited else next_sec, tables.now_sec + _STEP_SEC)
    tables.timers.set(("bookings",), next_sec, _wake)


def _wake() -> None:
    """Do nothing: `advance` runs with every event, that of a timer too."""


def _set_moment(tables: Tables, booking: PlannedBooking) -> None:
    """Have a booking visited at its next moment, whatever the rounds."""
    entry, now = booking.entry, tables.now_sec
    grace_sec = tables.accounts.policy.yield_grace_sec
    moments = (entry.starts_at_sec - NOTICE_SEC, entry.starts_at_sec - grace_sec, entry.starts_at_sec)
    at_sec = min((moment for moment in moments if moment > now), default=entry.ends_at_sec)
    heapq.heappush(tables.bookings.moments, (at_sec, booking.name))


def _take_due(tables: Tables) -> None:
    """Schedule visits of the bookings that have reached the start, the end or a time of notice."""
    table = tables.bookings
    for _ in range(_MOST_DUE):
        if not table.moments or table.moments[0][0] > tables.now_sec:
            return
        _, name = heapq.heappop(table.moments)
        if (booking := table.entries.get(name)) is not None:
            table.unvisited.append(name)
            if booking.entry.ends_at_sec > tables.now_sec:
                _set_moment(tables, booking)


def _visit(tables: Tables, name: str) -> None:
    """Adapt a booking to the time, and to devices that came or left."""
    booking, now = tables.bookings.entries.get(name), tables.now_sec
    if booking is None:
        return
    entry = booking.entry
    if now >= entry.ends_at_sec:
        _end(tables, booking, NotFound, f"{entry.name} has ended")
        return
    _find_missing(tables, booking)
    is_active = booking.is_active(now)
    for slot in list(booking.slots):
        if is_active and not slot.lease_name and _is_unused(booking, slot, now):
            _release(tables, slot)
            continue
        device = tables.devices.get(slot.device_name)
        if device is None:
            continue
        booked.update_hold(tables, device.name)
        if device.lease is not None and not slot.lease_name:
            _want(tables, booking, device.lease)
    if not booking.slots:
        _end(tables, booking, NotFound, f"{entry.name} was released: nobody used it for {UNUSED_SEC / 60:g} min")
        return
    _offer(tables, booking)
    if booking.lacking != booking.told:
        booking.told = booking.lacking
        tables.effects.append(ev.BookingChanged(entry, booking.missing_count))


def _find_missing(tables: Tables, booking: PlannedBooking) -> None:
    """Replace devices that left."""
    for slot in booking.slots:
        if slot.device_name and not slot.lease_name and slot.device_name not in booking.group.devices:
            booked.commit(tables, {slot: ""})
            booking.search_sec = tables.now_sec
    _note_lost(tables, booking)
    missing = [slot for slot in booking.slots if slot.is_lost]
    if not missing or tables.now_sec < booking.search_sec:
        return
    search = Search(tables)
    found = [search.place([slot]) for slot in missing]
    booked.commit(tables, search.moves)
    if not all(found):
        booking.search_sec = tables.now_sec + _RETRY_SEC


def _note_lost(tables: Tables, booking: PlannedBooking) -> None:
    """Note which devices of a booking cannot be had now."""
    for slot in booking.slots:
        slot.is_lost = not slot.lease_name and not (slot.device_name and _is_kept(tables, booking, slot))


def _is_kept(tables: Tables, booking: PlannedBooking, slot: Slot) -> bool:
    """Return True if the device of a slot serves, or will serve at the start. One that left a moment ago counts."""
    device, now = tables.devices[slot.device_name], tables.now_sec
    is_near = booking.entry.starts_at_sec - now < NOTICE_SEC
    is_back_soon = device.detached_at_sec is not None and now - device.detached_at_sec < _AWAY_SEC
    is_well = is_back_soon or (device.is_attached and device.is_healthy)
    return device.mark.state.is_open and (is_well or not is_near)


def _is_unused(booking: PlannedBooking, slot: Slot, now: float) -> bool:
    since_sec = max(booking.entry.starts_at_sec, slot.unused_since_sec)
    return not booking.requests and now - since_sec >= UNUSED_SEC


def _want(tables: Tables, booking: PlannedBooking, lease: LeaseEntry) -> None:
    """Ask a lease that outlasts the start of a booking to end."""
    entry, now = booking.entry, tables.now_sec
    grace_sec = tables.accounts.policy.yield_grace_sec
    is_batch = lease.terms.lease_class is LeaseClass.BATCH
    is_early = now < entry.starts_at_sec - (grace_sec if is_batch else NOTICE_SEC)
    if is_early or lease.ends_at_sec <= entry.starts_at_sec:
        return
    until_sec = max(entry.starts_at_sec, now + grace_sec)
    wanted = tables.yields.get(lease.name)
    if wanted is not None and wanted.until_sec <= until_sec:
        return
    reason = f"its device is booked by {entry.holder}: {booking_id(entry.name)}"
    tables.forget_yield(lease.name)
    demand = YieldEntry(
        lease_name=lease.name,
        request_key=None,
        lease_class=lease.terms.lease_class,
        until_sec=until_sec,
        reason=reason,
        booking=entry.name,
    )
    yielding.demand(tables, lease, demand)


def _offer(tables: Tables, booking: PlannedBooking) -> None:
    """Offer one free device of a booking to waiting requests: quotas and leases may have changed."""
    booking.offered += 1
    slot = booking.slots[booking.offered % len(booking.slots)]
    device = tables.devices.get(slot.device_name)
    is_wanted = bool(booking.requests or len(tables.waiting))
    if is_wanted and device is not None and device.can_serve and device.name not in tables.sets.held:
        leases.serve(tables, device)
    _serve_own(tables, booking)


def _serve_own(tables: Tables, booking: PlannedBooking) -> None:
    """Grant the free devices of a booking that has started to the requests that wait for them."""
    if not booking.is_active(tables.now_sec):
        return
    for slot in list(booking.slots):
        if not booking.requests:
            return
        device = tables.devices.get(slot.device_name)
        if device is not None and device.can_serve:
            leases.serve(tables, device)


def _release(tables: Tables, slot: Slot) -> None:
    name, booking = slot.device_name, slot.booking
    tables.bookings.release(slot)
    tables.changes.bookings[booking.name] = booking.entry
    tables.version += 1
    if name:
        booked.update_hold(tables, name)
        booked.withdraw(tables, name, booking.name)


def _end(tables: Tables, booking: PlannedBooking, error_class: type[FleetError], message: str) -> None:
    """Remove a booking, and refuse the requests that wait for it."""
    names = booking.entry.device_names
    for request in list(booking.requests.values()):
        tables.remove_request(request)
        tables.refuse(request.client_id, request.request_id, error_class, message)
    for slot in list(booking.slots):
        _release(tables, slot)
    booking.entry.device_names = names
    tables.bookings.remove(booking)
    tables.changes.bookings[booking.name] = None
