"""Entries for leases in the audit log."""

from __future__ import annotations

import json

import pytest

from fleet.cli.audit import entry_text
from fleet.client.identity_calls import IdentityCalls
from fleet.errors import NotAllowed
from fleet.identity.audit_entry import LEASE_ENDED, AuditEntry
from fleet.identity.policy import check_role
from fleet.identity.roles import Identity, Role
from fleet.testing import eventually, serve_tracker
from fleet.testing.agent import SimulatedAgent
from fleet.testing.lease_stream import LeaseStream


async def test_a_lease_is_one_entry_with_device_holder_and_duration() -> None:
    """Before, a lab's day was a list of LeaseService.OpenLeases, without device or duration."""
    async with (
        serve_tracker() as served,
        SimulatedAgent(served.address, ["devices/board"]),
        LeaseStream(served.address, "holder") as holder,
        IdentityCalls(served.address) as admin,
    ):
        lease = (await holder.grant("r", "simulated")).lease
        holder.release(lease.name)

        async def ended() -> list[AuditEntry]:
            return [entry for entry in await admin.audit_entries(100) if entry.action == LEASE_ENDED]

        (entry,) = await eventually(ended)

    subject = json.loads(entry.subject)
    assert ("devices/board", lease.name, "released") == (subject["device"], subject["lease"], subject["end"])
    assert subject["held_sec"] >= 0
    assert entry.key_id
    assert entry_text(entry).startswith("held devices/board for ")


def test_the_error_of_a_missing_role_is_in_the_commands_words() -> None:
    """Before, the error named an RPC: "IdentityService.ListAuditEntries takes the role admin"."""
    user = Identity(name="alice", role=Role.USER, key_id="0" * 40)

    with pytest.raises(NotAllowed, match=r"reading the audit log takes the role admin; this account is user alice"):
        check_role("fleet.v1.IdentityService.ListAuditEntries", user)
