"""Audit log entries of marks that the tracker sets by itself; those of admins are in the log with their calls."""

from __future__ import annotations

import json

from fleet.base.clock import Clock
from fleet.identity.audit_entry import DEVICE_MARKED, AuditEntry
from fleet.identity.roles import Role
from fleet.tracker.audit import AuditLog
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
        self._audit.write(
            AuditEntry(
                at_sec=self._clock.now_sec(),
                name="tracker",
                role=Role.TRACKER,
                key_id="",
                peer="",
                action=DEVICE_MARKED,
                subject=json.dumps(subject),
                outcome="ok",
            )
        )
