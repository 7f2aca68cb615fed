"""Access policy: one line for every rpc of the fleet. Pure.

A test compares the table with the services' descriptors: an rpc that is not here cannot be called by anybody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import NotAllowed
from fleet.identity.roles import Identity, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Callers of one rpc."""

    roles: frozenset[Role]
    own_only: frozenset[Role] = frozenset()
    """Members of these roles may act only on objects of their own key; see `check_owner`."""
    is_audited: bool = False
    """True if calls, refused ones too, are written to the tracker's audit log: it changes something there."""
    hidden: frozenset[str] = frozenset()
    """Fields of the request that the log must not show."""


_ANYBODY = frozenset({Role.STRANGER, Role.AGENT, Role.USER, Role.ADMIN})
_MEMBERS = frozenset({Role.AGENT, Role.USER, Role.ADMIN})
_USERS = frozenset({Role.USER, Role.ADMIN})
_ADMINS = frozenset({Role.ADMIN})
_AGENTS = frozenset({Role.AGENT})

RULES: Mapping[str, Rule] = {
    # At the tracker.
    "BookingService.Book": Rule(roles=_USERS, is_audited=True),
    "BookingService.ListBookings": Rule(roles=_USERS),
    "BookingService.CancelBooking": Rule(roles=_USERS, own_only=frozenset({Role.USER}), is_audited=True),
    "AgentService.Attach": Rule(roles=_AGENTS, is_audited=True),
    "ApprovalService.AskToJoin": Rule(
        roles=_ANYBODY, is_audited=True, hidden=frozenset({"certificate_request", "commitment"})
    ),
    "ApprovalService.ListPendingAgents": Rule(roles=_ADMINS),
    "ApprovalService.ApproveAgent": Rule(roles=_ADMINS, is_audited=True),
    "ApprovalService.RefuseAgent": Rule(roles=_ADMINS, is_audited=True),
    "FleetService.GetFleet": Rule(roles=_MEMBERS),
    "FleetService.WatchFleet": Rule(roles=_MEMBERS),
    "FleetService.CheckSelector": Rule(roles=_MEMBERS),
    "FleetService.GetUsage": Rule(roles=_USERS),
    "FleetService.GetHistory": Rule(roles=_MEMBERS),
    "IdentityService.Join": Rule(roles=_ANYBODY, is_audited=True, hidden=frozenset({"secret", "certificate_request"})),
    "IdentityService.RenewCertificate": Rule(roles=_MEMBERS, is_audited=True),
    "IdentityService.CreateJoinToken": Rule(roles=_ADMINS, is_audited=True),
    "IdentityService.ListJoinTokens": Rule(roles=_ADMINS),
    "IdentityService.RevokeJoinToken": Rule(roles=_ADMINS, is_audited=True),
    "IdentityService.UnbindDevice": Rule(roles=_ADMINS, is_audited=True),
    "IdentityService.ListMembers": Rule(roles=_ADMINS),
    "IdentityService.RevokeMember": Rule(roles=_ADMINS, is_audited=True),
    "IdentityService.ListRevokedKeys": Rule(roles=_MEMBERS),
    "IdentityService.ListAuditEntries": Rule(roles=_ADMINS),
    "LeaseService.OpenLeases": Rule(roles=_USERS, is_audited=True),
    "LeaseService.RevokeLease": Rule(roles=_USERS, own_only=frozenset({Role.USER}), is_audited=True),
    "LeaseService.CancelRequest": Rule(roles=_USERS, own_only=frozenset({Role.USER}), is_audited=True),
    "LeaseService.ExplainRequest": Rule(roles=_USERS),
    "LeaseService.ResetEpochs": Rule(roles=_ADMINS, is_audited=True),
    "LeaseService.ReloadTracker": Rule(roles=_ADMINS, is_audited=True),
    "LeaseService.SetHealth": Rule(roles=_ADMINS, is_audited=True),
    "PoisonService.ListPoison": Rule(roles=_USERS),
    "PoisonService.ForgetPoison": Rule(roles=_ADMINS, is_audited=True),
    "ReplicaService.GetTracker": Rule(roles=_MEMBERS),
    "ReplicaService.Follow": Rule(roles=frozenset({Role.STANDBY}), is_audited=True),
    "ReplicaService.Promote": Rule(roles=_ADMINS, is_audited=True),
    # At an agent. Each call also carries the token of a lease, which contains the caller's key.
    "SessionService.OpenSession": Rule(roles=_USERS),
    "SessionService.FindMissing": Rule(roles=_USERS),
    "SessionService.PutArtifact": Rule(roles=_USERS),
    "SessionService.Measure": Rule(roles=_USERS),
    "SessionService.Call": Rule(roles=_USERS),
    "SessionService.CallInPieces": Rule(roles=_USERS),
    "SessionService.Prove": Rule(roles=_USERS),
    "SessionService.ProveInPieces": Rule(roles=_USERS),
    "SessionService.Tunnel": Rule(roles=_USERS),
    "SessionService.Program": Rule(roles=_USERS),
    "SessionService.WatchLogs": Rule(roles=_USERS),
    "SessionService.MakeUploadTicket": Rule(roles=_USERS),
    "SessionService.CloseSession": Rule(roles=_USERS),
    # At an agent, without a token.
    "LeaseLogService.WatchLeaseLog": Rule(roles=_USERS, own_only=frozenset({Role.USER})),
    # At a relay.
    "RelayService.WatchClients": Rule(roles=_AGENTS),
    # At an optimizer.
    "CostModelService.WatchSnapshots": Rule(roles=_USERS),
    "SnapshotService.WatchSnapshots": Rule(roles=_USERS),
}
_ACTIONS: Mapping[str, str] = {
    "AgentService.Attach": "serving devices",
    "ApprovalService.ListPendingAgents": "listing the agents that ask to join",
    "ApprovalService.ApproveAgent": "approving an agent",
    "ApprovalService.RefuseAgent": "refusing an agent",
    "BookingService.Book": "booking devices",
    "BookingService.ListBookings": "listing the bookings",
    "BookingService.CancelBooking": "cancelling a booking",
    "FleetService.GetUsage": "reading the use of the fleet",
    "IdentityService.CreateJoinToken": "making a join token",
    "IdentityService.ListJoinTokens": "listing join tokens",
    "IdentityService.RevokeJoinToken": "revoking a join token",
    "IdentityService.UnbindDevice": "freeing a device's name",
    "IdentityService.ListMembers": "listing the members",
    "IdentityService.RevokeMember": "revoking a member",
    "IdentityService.ListAuditEntries": "reading the audit log",
    "LeaseService.OpenLeases": "leasing devices",
    "LeaseService.RevokeLease": "revoking a lease",
    "LeaseService.CancelRequest": "cancelling a request",
    "LeaseService.ExplainRequest": "reading why a request waits",
    "LeaseService.ResetEpochs": "resetting a device's epochs",
    "LeaseService.ReloadTracker": "reloading the tracker's shares and quotas",
    "LeaseService.SetHealth": "judging devices",
    "LeaseLogService.WatchLeaseLog": "reading the output of leases",
    "PoisonService.ListPoison": "listing poison",
    "PoisonService.ForgetPoison": "forgetting poison",
    "ReplicaService.Follow": "following the tracker",
    "ReplicaService.Promote": "promoting a standby",
}
"""Readable names of rpcs for error messages, in the words of the commands that call them."""

_NOBODY = Rule(roles=frozenset())


def rule_of(rpc: str) -> Rule:
    """Return the rule of an rpc, by its full name; rpcs without a rule are forbidden."""
    return RULES.get(short_name(rpc), _NOBODY)


def check_role(rpc: str, caller: Identity) -> None:
    """Refuse a caller without a sufficient role.

    Raises:
        NotAllowed: it says which roles would.
    """
    roles = rule_of(rpc).roles
    if caller.role in roles:
        return
    needed = " or ".join(sorted(roles)) or "a newer fleet"
    if caller.role is Role.STRANGER:
        raise NotAllowed(f"{short_name(rpc)} takes a member of the fleet; join it first: fleet login")
    action = _ACTIONS.get(short_name(rpc), short_name(rpc))
    raise NotAllowed(f"{action} takes the role {needed}; this account is {caller}")


def check_owner(rpc: str, caller: Identity, owner_key_id: str, *, what: str) -> None:
    """Refuse access to another member's objects, unless the caller's role permits it.

    Raises:
        NotAllowed: `what` names the object.
    """
    if caller.role in rule_of(rpc).own_only and caller.key_id != owner_key_id:
        raise NotAllowed(f"{what} is another's; its holder or an admin can do this")


def short_name(rpc: str) -> str:
    """Return an rpc's name in the table, without the package."""
    return rpc.removeprefix("fleet.v1.")
