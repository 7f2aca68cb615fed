"""Bookings of the client's account that lack devices, as the tracker reports them.

A tracker sends the state of every booking when a stream opens, so that no change is missed during an outage. Watchers
are called for a booking that lacks devices, once for each stream and after each change, and when it has all again.
"""

from __future__ import annotations

from collections.abc import Callable

from fleet.domain.bookings import Booking

OnBooking = Callable[[Booking], object]
"""Called with a booking that cannot be kept any more (`missing_count` above 0), or can again."""

_MOST = 64
"""Number of bookings that are remembered: trackers accept fewer for one account."""


class BookingNotices:
    """Bookings that lack devices, and the callbacks of watchers."""

    def __init__(self) -> None:
        self._lacking: dict[str, Booking] = {}
        self._told: set[str] = set()
        """Names of lacking bookings that were reported since the stream opened."""
        self._watchers: list[OnBooking] = []

    def watch(self, on_change: OnBooking) -> None:
        """Register a callback, called on the event loop, and at once for bookings that lack devices."""
        self._watchers.append(on_change)
        for booking in list(self._lacking.values()):
            on_change(booking)

    def reopen(self) -> None:
        """Note that a new stream opened: bookings that lack devices are reported again."""
        self._told.clear()

    def changed(self, booking: Booking) -> None:
        """Note the state of a booking, and report it if its missing devices changed."""
        former = self._lacking.pop(booking.name, None)
        is_repeat = former is not None and former.lacking == booking.lacking and booking.name in self._told
        if booking.missing_count > 0:
            self._lacking[booking.name] = booking
            self._told.add(booking.name)
            if len(self._lacking) > _MOST:
                del self._lacking[next(iter(self._lacking))]
        elif former is None:
            return
        if not is_repeat:
            for on_change in list(self._watchers):
                on_change(booking)
