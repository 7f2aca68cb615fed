"""Log entries of bookings that cannot be kept any more, and of those that can again."""

from __future__ import annotations

import logging

from fleet.base.clock import Clock
from fleet.identity.audit_entry import BOOKING_CHANGED
from fleet.tracker.audit import AuditLog, tracker_entry
from fleet.tracker.core import events as ev
from fleet.tracker.observers import Observer

logger = logging.getLogger(__name__)


class BookingAudit(Observer):
    """Logs lost devices of bookings."""

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock

    def on_effect(self, effect: ev.Effect) -> None:
        """Write an entry for a booking that lacks devices, or has all of them again."""
        if not isinstance(effect, ev.BookingChanged):
            return
        entry = effect.booking
        subject = {"booking": entry.name, "by": entry.holder, "missing": effect.missing_count}
        level = logging.WARNING if effect.missing_count else logging.INFO
        logger.log(level, "devices of a booking changed", extra=subject)
        self._audit.write(tracker_entry(self._clock.now_sec(), BOOKING_CHANGED, subject))
