"""Audit log entries of leases: one per lease, at its end, with device, holder and duration."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from fleet.base.clock import Clock
from fleet.identity.audit_entry import LEASE_ENDED, AuditEntry
from fleet.identity.roles import Role
from fleet.tracker.audit import AuditLog
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.messages import key_of
from fleet.tracker.observers import Observer


class LeaseAudit(Observer):
    """Track live leases and log their ends."""

    def __init__(
        self, audit: AuditLog, clock: Clock, role_of: Callable[[str], Role], live: Iterable[LeaseEntry] = ()
    ) -> None:
        """Args:
        role_of: returns the role of the member with a key.
        live: leases restored from the journal.
        """
        self._audit = audit
        self._clock = clock
        self._role_of = role_of
        self._live = {lease.name: lease for lease in live}

    def on_effect(self, effect: ev.Effect) -> None:
        """Record a grant, or write the entry at the end of a lease."""
        match effect:
            case ev.Granted(lease=lease):
                self._live[lease.name] = lease
            case ev.LeaseEnded(lease_name=name):
                if name in self._live:
                    self._write(self._live.pop(name), effect)

    def _write(self, lease: LeaseEntry, ended: ev.LeaseEnded) -> None:
        now_sec, key_id = self._clock.now_sec(), key_of(lease.client_id)
        subject = {
            "lease": lease.name,
            "device": lease.device_name,
            "held_sec": round(now_sec - lease.granted_at_sec, 3),
            "end": ended.end.name.lower(),
            "purpose": lease.terms.purpose,
        }
        self._audit.write(
            AuditEntry(
                at_sec=now_sec,
                name=lease.holder,
                role=self._role_of(key_id),
                key_id=key_id,
                peer="",
                action=LEASE_ENDED,
                subject=json.dumps(subject),
                outcome="ok",
            )
        )
