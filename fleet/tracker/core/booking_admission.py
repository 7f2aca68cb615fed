"""Admission of bookings, and of requests for their devices; the errors of refused ones. Pure."""

from __future__ import annotations

from dataclasses import replace

from fleet.base.quantities import count_text
from fleet.base.text import sanitize
from fleet.domain.bookings import booking_id, check_count, check_length, checked_start
from fleet.domain.leases import LeaseClass
from fleet.errors import (
    AlreadyBooked,
    DiskFull,
    FleetError,
    InvalidRequest,
    LimitReached,
    NoMatchingDevice,
    NotAllowed,
    NotFound,
)
from fleet.tracker.core import booked
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import checked_selector, no_match_error
from fleet.tracker.core.booking_plan import Search
from fleet.tracker.core.booking_table import PlannedBooking
from fleet.tracker.core.records import BookingEntry, RequestEntry
from fleet.tracker.core.tables import Tables

_SHOWN_CHARS = 100
_SHOWN_RIVALS = 3
"""Bookings that a refusal names."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def admit(tables: Tables, event: ev.Book) -> PlannedBooking:
    """Add a booking that can be kept beside all others.

    Raises:
        FleetError: it cannot; the class says why.
    """
    if tables.journal_trouble:
        raise DiskFull(tables.journal_trouble)
    selector = checked_selector(event.selector)
    check_count(event.device_count)
    starts_at_sec = checked_start(event.starts_at_sec, tables.now_sec)
    quota = tables.accounts.quota(event.account, LeaseClass.NORMAL)
    length_sec = event.ends_at_sec - event.starts_at_sec
    check_length(length_sec, min(tables.limits.max_duration_sec, quota.longest_sec))
    ends_at_sec = max(event.ends_at_sec, starts_at_sec + 1.0)
    _check_limits(tables, event, quota.leases, starts_at_sec, ends_at_sec)
    count = tables.matching.count(selector)
    if not count:
        raise no_match_error(selector, tables.devices, tables.matching)
    if count < event.device_count:
        raise NoMatchingDevice(f"{selector!r} matches {count} of the {event.device_count} devices wanted; choose fewer")
    tables.bookings.last_number = max(tables.bookings.last_number + 1, int(tables.now_sec))
    entry = BookingEntry(
        name=f"bookings/{_text(tables.bookings.last_number)}",
        selector=selector,
        starts_at_sec=starts_at_sec,
        ends_at_sec=ends_at_sec,
        booked_at_sec=tables.now_sec,
        holder=event.holder,
        account=event.account,
        key_id=event.key_id,
        request_id=event.request_id,
        device_names=("",) * event.device_count,
    )
    booking = tables.bookings.add(entry)
    search = Search(tables)
    if not search.place(booking.slots):
        tables.bookings.remove(booking)
        raise _no_room_error(tables, entry, search)
    booked.commit(tables, search.moves)
    return booking


def with_booked_terms(tables: Tables, event: ev.Acquire) -> ev.Acquire:
    """Return a request with the selector of its booking. Its class is normal: nobody asks for its device.

    Raises:
        NotFound: there is no such booking.
        InvalidRequest: it has terms beside the booking.
    """
    terms = event.terms
    if not terms.booking:
        return event
    selector = _booking(tables, terms.booking).entry.selector
    if terms.selector not in ("", "*", selector):
        raise InvalidRequest(f"the booking is for {selector!r}; leave the selector of the request out")
    if terms.also or terms.prefer or terms.even_if is not None:
        raise InvalidRequest("a request with a booking takes one of its devices; leave further terms out")
    return replace(event, terms=replace(terms, selector=selector, lease_class=LeaseClass.NORMAL))


def check_booking(tables: Tables, request: RequestEntry) -> None:
    """Refuse a request for an unknown booking, or for another account's.

    Raises:
        NotFound: there is no such booking.
        NotAllowed: it is another account's.
    """
    name = request.terms.booking
    if name and _booking(tables, name).entry.account != request.account:
        raise NotAllowed(f"{name} is another account's; book devices for your own: fleet book")


def number_of(name: str) -> int:
    """Return the number in the name of a booking; 0 if no tracker has made the name."""
    try:
        return int(booking_id(name), len(_DIGITS))
    except ValueError:
        return 0


def _booking(tables: Tables, name: str) -> PlannedBooking:
    booking = tables.bookings.entries.get(name)
    if booking is None:
        shown = sanitize(booking_id(name), _SHOWN_CHARS)
        raise NotFound(f"there is no booking {shown!r} now; 'fleet bookings' lists those there are")
    return booking


def _check_limits(tables: Tables, event: ev.Book, leases_at_once: float, starts: float, ends: float) -> None:
    """Refuse a booking beyond the number of bookings, or the leases at once of its account.

    Raises:
        LimitReached: there are too many.
        InvalidRequest: it is beyond the quota of its account.
    """
    limits, entries = tables.limits, [booking.entry for booking in tables.bookings.entries.values()]
    own = [entry for entry in entries if entry.account == event.account]
    if len(own) >= limits.max_bookings_per_account:
        raise LimitReached(f"its account has {len(own)} bookings, which is the limit; cancel one: fleet bookings")
    if len(entries) >= limits.max_bookings:
        raise LimitReached(f"there are {len(entries)} bookings, and no more may be; try again later")
    overlapping = [entry for entry in own if entry.starts_at_sec < ends and starts < entry.ends_at_sec]
    moments = [starts, *(max(entry.starts_at_sec, starts) for entry in overlapping)]
    booked_count = max(
        sum(len(entry.device_names) for entry in overlapping if entry.starts_at_sec <= at < entry.ends_at_sec)
        for at in moments
    )
    if booked_count + event.device_count > leases_at_once:
        beside = f" beside {booked_count} that are booked" if booked_count else ""
        raise InvalidRequest(
            f"{event.device_count} devices{beside} exceed the {leases_at_once:g} leases at once of its account; "
            "choose fewer, or another time"
        )


def _no_room_error(tables: Tables, entry: BookingEntry, search: Search) -> FleetError:
    """Return the error for a booking that cannot be kept beside the others, with some that are in the way."""
    if search.is_exhausted:
        return AlreadyBooked("so many devices are booked that the search was given up; choose a narrower selector")
    rivals = [
        other.entry
        for other in tables.bookings.entries.values()
        if other.entry.starts_at_sec < entry.ends_at_sec and entry.starts_at_sec < other.entry.ends_at_sec
    ]
    wanted = f"{count_text(len(entry.device_names), 'device')} for {entry.selector!r}"
    if not rivals:
        return AlreadyBooked(f"{wanted} cannot be had then: some are away, marked, or leased for longer")
    listed = ", ".join(f"{booking_id(other.name)} of {other.holder}" for other in rivals[:_SHOWN_RIVALS])
    more = f" and {len(rivals) - _SHOWN_RIVALS} more" if len(rivals) > _SHOWN_RIVALS else ""
    return AlreadyBooked(f"{wanted} cannot be had beside the bookings {listed}{more}; choose another time")


def _text(number: int) -> str:
    """Return a number as a short text."""
    text = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text
