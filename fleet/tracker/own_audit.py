"""Audit log entries of the tracker's own changes: its marks, and bookings that lack devices or have all of them again.

Changes by admins are in the log with their calls.
"""

from __future__ import annotations

import logging

from fleet.base.clock import Clock
from fleet.identity.audit_entry import BOOKING_CHANGED, DEVICE_MARKED
from fleet.tracker.audit import AuditLog, tracker_entry
from fleet.tracker.core import events as ev
from fleet.tracker.observers import Observer

logger = logging.getLogger(__name__)


class OwnAudit(Observer):
    """Logs the tracker's own changes."""

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock

    def on_effect(self, effect: ev.Effect) -> None:
        """Write an entry for a mark without an author, or a booking whose devices changed."""
        if isinstance(effect, ev.HealthMarked) and not effect.mark.by:
            marked = {"device": effect.device_name, "state": effect.mark.state, "reason": effect.mark.reason}
            self._audit.write(tracker_entry(self._clock.now_sec(), DEVICE_MARKED, marked))
        elif isinstance(effect, ev.BookingChanged):
            booking, missing = effect.booking, effect.missing_count
            changed = {"booking": booking.name, "by": booking.holder, "missing": missing}
            logger.log(logging.WARNING if missing else logging.INFO, "devices of a booking changed", extra=changed)
            self._audit.write(tracker_entry(self._clock.now_sec(), BOOKING_CHANGED, changed))
