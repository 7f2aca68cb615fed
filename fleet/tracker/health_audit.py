"""Audit log entries of marks that the tracker sets by itself; those of admins are in the log with their calls."""

from __future__ import annotations

from fleet.base.clock import Clock
from fleet.identity.audit_entry import DEVICE_MARKED
from fleet.tracker.audit import AuditLog, tracker_entry
from fleet.tracker.core import events as ev
from fleet.tracker.observers import Observer


class HealthAudit(Observer):
    """Logs the tracker's own marks."""

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self._audit = audit
        self._clock = clock

    def on_effect(self, effect: ev.Effect) -> None:
        """Write an entry for a mark without an author."""
        if not isinstance(effect, ev.HealthMarked) or effect.mark.by:
            return
        subject = {"device": effect.device_name, "state": effect.mark.state, "reason": effect.mark.reason}
        self._audit.write(tracker_entry(self._clock.now_sec(), DEVICE_MARKED, subject))
