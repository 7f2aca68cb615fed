"""Audit log entries of leases: one per lease, at its end, with device, holder and duration."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from fleet.base.clock import Clock
from fleet.identity.audit_entry import LEASE_ENDED, AuditEntry
from fleet.identity.roles import Role
from fleet.tracker.audit import AuditLog
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.messages import key_of
from fleet.tracker.observers import Observer


class LeaseAudit(Observer):
    """Log the ends of leases."""

    def __init__(self, audit: AuditLog, clock: Clock, role_of: Callable[[str], Role]) -> None:
        """Args:
        role_of: returns the role of the member with a key.
        """
        self._audit = audit
        self._clock = clock
        self._role_of = role_of

    def on_effect(self, effect: ev.Effect) -> None:
        """Write the entry at the end of a lease."""
        if isinstance(effect, ev.LeaseEnded) and effect.lease is not None:
            now_sec = self._clock.now_sec()
            self._audit.write_limited(now_sec, partial(self._entry, effect.lease, effect, now_sec))

    def _entry(self, lease: LeaseEntry, ended: ev.LeaseEnded, now_sec: float) -> AuditEntry:
        key_id = key_of(lease.client_id)
        subject = {
            "lease": lease.name,
            "device": lease.device_name,
            "held_sec": round(now_sec - lease.granted_at_sec, 3),
            "end": ended.end.name.lower(),
            "purpose": lease.terms.purpose,
        }
        return AuditEntry(
            at_sec=now_sec,
            name=lease.holder,
            role=self._role_of(key_id),
            key_id=key_id,
            peer="",
            action=LEASE_ENDED,
            subject=json.dumps(subject),
            outcome="ok",
        )
