"""`fleet audit`: actions of members in the fleet."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from fleet.base.quantities import elapsed_text
from fleet.cli import options
from fleet.cli.tables import make_console, text_table, utc_text
from fleet.identity.audit_entry import BOOKING_CHANGED, DEVICE_MARKED, LEASE_ENDED, AuditEntry

_WORDS = {
    "AgentService.Attach": "attached",
    "ApprovalService.AskToJoin": "asked to join",
    "ApprovalService.ApproveAgent": "approved an agent",
    "ApprovalService.RefuseAgent": "refused an agent",
    "IdentityService.Join": "joined",
    "IdentityService.RenewCertificate": "renewed the certificate",
    "IdentityService.CreateJoinToken": "made a join token",
    "IdentityService.RevokeJoinToken": "revoked a join token",
    "IdentityService.UnbindDevice": "freed a device's name",
    "IdentityService.RevokeMember": "revoked a member",
    "LeaseService.OpenLeases": "connected",
    "LeaseService.RevokeLease": "revoked a lease",
    "LeaseService.CancelRequest": "cancelled a request",
    "LeaseService.ResetEpochs": "reset the epochs",
    "LeaseService.ReloadTracker": "reloaded shares and quotas",
    "LeaseService.SetHealth": "judged devices",
    "PoisonService.ForgetPoison": "had poison forgotten",
    DEVICE_MARKED: "marked a device",
    BOOKING_CHANGED: "changed a booking's devices",
    "BookingService.Book": "booked devices",
    "BookingService.CancelBooking": "cancelled a booking",
}
"""Readable names of rpcs; --json prints the original names."""


def audit(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many entries, the newest.")] = 50,
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show actions in the fleet with their callers, and refused calls. For admins.

    Example: fleet audit -n 100 --json
    """
    entries = options.query_identities(tracker, lambda calls: calls.audit_entries(limit))
    if json_output:
        options.print_json({"deeds": [asdict(entry) for entry in entries]})
        return
    table = text_table("when", "who", "did", "outcome")
    for entry in entries:
        who = f"{entry.role} {entry.name} {entry.key_id[:8]}"
        table.add_row(utc_text(entry.at_sec), *map(Text, (who, entry_text(entry), entry.outcome)))
    make_console(is_wide=False).print(table)


def entry_text(entry: AuditEntry) -> str:
    """Return an audit entry as text. The entry of a lease has its device and duration."""
    if entry.action != LEASE_ENDED:
        return f"{_WORDS.get(entry.action, entry.action)} {_plain(entry.subject)}".rstrip()
    with contextlib.suppress(ValueError, KeyError, TypeError):
        lease = json.loads(entry.subject)
        held = elapsed_text(float(lease["held_sec"]))
        return f"held {lease['device']} for {held}, {lease['end']} {lease['purpose']}".rstrip()
    return f"held {entry.subject}"


def _plain(subject: str) -> str:
    """Return an action's object without JSON's brackets; unchanged if the log has truncated it."""
    try:
        return " ".join(f"{name}={value}" for name, value in json.loads(subject or "{}").items())
    except ValueError:
        return subject
