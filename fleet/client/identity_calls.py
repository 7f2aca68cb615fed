"""Calls to the tracker about its members: joining, ownership of device names, the audit log. Most are an admin's."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Self, TypeVar

import grpc.aio

from fleet.client.connection import TrackerConnection
from fleet.errors import ConfigError, TrackerUnavailable
from fleet.identity.audit_entry import AuditEntry
from fleet.identity.certificates import pin_of
from fleet.identity.credentials import Credentials
from fleet.identity.join_tokens import JoinToken
from fleet.identity.member import Member
from fleet.identity.roles import Role
from fleet.v1 import approval_service_pb2 as approval_pb
from fleet.v1 import identity_service_pb2 as pb
from fleet.wire.joining import ROLES
from fleet.wire.rpc import from_rpc_error
from fleet.wire.stubs import ApprovalServiceStub, IdentityServiceStub, approval_service_stub, identity_service_stub
from fleet.wire.times import duration, timestamp_sec

T = TypeVar("T")

_TIMEOUT_SEC = 10.0
_ROLES = {number: role for role, number in ROLES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """Public fields of an unused join token. Times are the tracker's [s since 1970]."""

    token_id: str
    role: Role
    created_at_sec: float
    expires_at_sec: float
    created_by: str
    note: str
    account: str = ""
    """Account that the member's requests count for; empty: the member's key."""
    may_ask_for_others: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAgent:
    """An agent that waits for an admin's approval."""

    code: str
    """Code that the agent shows, too."""

    key_id: str
    name: str
    """Name that it proposes."""

    host: str
    asked_at_sec: float
    """[s since 1970, the tracker's clock]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """Leases and devices that ended with a key."""

    member: Member
    ended_leases: tuple[str, ...]
    freed_devices: tuple[str, ...]


class IdentityCalls:
    """A connection for these calls: `async with IdentityCalls(address) as calls`."""

    def __init__(self, address: str) -> None:
        self._connection = TrackerConnection(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def invite(
        self, role: Role, *, ttl_sec: float, note: str = "", account: str = "", may_ask_for_others: bool = False
    ) -> tuple[JoinToken, Invitation]:
        """Make a join token.

        Args:
            account: account that the member's requests count for; empty: the member's key.
            may_ask_for_others: whether the member may acquire devices for other accounts.

        Raises:
            InvalidRequest: the account's name is malformed, or it is for an agent.
            NotAllowed: this account is no admin there.
        """
        stub = await self._stub()
        proof = self._connection.proof
        if not isinstance(proof, Credentials):
            raise ConfigError(f"the tracker at {self._connection.address} runs without TLS: there is nothing to join")
        request = pb.CreateJoinTokenRequest(
            role=ROLES[role],
            ttl=duration(ttl_sec),
            note=note,
            account=account,
            may_ask_for_others=may_ask_for_others,
        )
        made = await self._answer(stub.create_join_token(request, timeout=_TIMEOUT_SEC))
        return JoinToken(secret=made.secret, pin=pin_of(proof.authority_pem)), _invitation(made.token)

    async def invitations(self) -> list[Invitation]:
        """Return the unused join tokens, the oldest first."""
        request = pb.ListJoinTokensRequest()
        answer = await self._answer((await self._stub()).list_join_tokens(request, timeout=_TIMEOUT_SEC))
        return list(map(_invitation, answer.tokens))

    async def uninvite(self, token_id: str) -> None:
        """Invalidate a join token.

        Raises:
            NotFound: there is none of this id.
        """
        request = pb.RevokeJoinTokenRequest(token_id=token_id)
        await self._answer((await self._stub()).revoke_join_token(request, timeout=_TIMEOUT_SEC))

    async def pending_agents(self) -> list[PendingAgent]:
        """Return the agents that wait for approval, oldest first."""
        request = approval_pb.ListPendingAgentsRequest()
        answer = await self._answer((await self._approval()).list_pending_agents(request, timeout=_TIMEOUT_SEC))
        return list(map(_pending, answer.agents))

    async def approve_agent(self, code: str, name: str = "") -> Member:
        """Make a waiting agent a member.

        Args:
            name: name of the member; empty: the one that it proposes.

        Raises:
            NotFound: no agent with this code waits.
        """
        request = approval_pb.ApproveAgentRequest(code=code, name=name)
        answer = await self._answer((await self._approval()).approve_agent(request, timeout=_TIMEOUT_SEC))
        return _member(answer.member)

    async def refuse_agent(self, code: str, reason: str = "") -> PendingAgent:
        """Turn a waiting agent away; it shows the reason.

        Raises:
            NotFound: no agent with this code waits.
        """
        request = approval_pb.RefuseAgentRequest(code=code, reason=reason)
        answer = await self._answer((await self._approval()).refuse_agent(request, timeout=_TIMEOUT_SEC))
        return _pending(answer.agent)

    async def unbind(self, device_name: str) -> str:
        """Unbind a device name; return the key that it was bound to.

        Raises:
            NotFound: it is nobody's.
        """
        request = pb.UnbindDeviceRequest(device_name=device_name)
        return (await self._answer((await self._stub()).unbind_device(request, timeout=_TIMEOUT_SEC))).key_id

    async def members(self) -> list[Member]:
        """Return the members: current ones first, then those with a revoked key."""
        request = pb.ListMembersRequest()
        answer = await self._answer((await self._stub()).list_members(request, timeout=_TIMEOUT_SEC))
        return list(map(_member, answer.members))

    async def revoke(self, key_id: str, reason: str = "") -> Revocation:
        """Revoke the membership of a key, and end its leases and devices.

        Args:
            key_id: the key, or at least its first 8 digits.

        Raises:
            NotFound: there is none.
            InvalidRequest: it is this account's own, or several begin like this.
        """
        request = pb.RevokeMemberRequest(key_id=key_id, reason=reason)
        answer = await self._answer((await self._stub()).revoke_member(request, timeout=_TIMEOUT_SEC))
        return Revocation(
            member=_member(answer.member),
            ended_leases=tuple(answer.ended_leases),
            freed_devices=tuple(answer.freed_devices),
        )

    async def revoked_keys(self) -> frozenset[str]:
        """Return the revoked keys.

        Raises:
            KeyRevoked: this account's own is one.
        """
        request = pb.ListRevokedKeysRequest()
        answer = await self._answer((await self._stub()).list_revoked_keys(request, timeout=_TIMEOUT_SEC))
        return frozenset(answer.key_ids)

    async def audit_entries(self, limit: int) -> list[AuditEntry]:
        """Return the newest entries of the audit log, oldest first."""
        request = pb.ListAuditEntriesRequest(limit=limit)
        answer = await self._answer((await self._stub()).list_audit_entries(request, timeout=_TIMEOUT_SEC))
        return list(map(_audit_entry, answer.entries))

    async def _approval(self) -> ApprovalServiceStub:
        return approval_service_stub(await self._connection.channel())

    async def _stub(self) -> IdentityServiceStub:
        return identity_service_stub(await self._connection.channel())

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            found = from_rpc_error(error, TrackerUnavailable)
            if isinstance(found, TrackerUnavailable):
                address = self._connection.address
                self._connection.choose_again()
                raise TrackerUnavailable(f"the tracker at {address} does not answer: {found}") from error
            raise found from error


def _invitation(token: pb.JoinToken) -> Invitation:
    return Invitation(
        token_id=token.token_id,
        role=_ROLES.get(token.role, Role.STRANGER),
        created_at_sec=timestamp_sec(token.created_at),
        expires_at_sec=timestamp_sec(token.expires_at),
        created_by=token.created_by,
        note=token.note,
        account=token.account,
        may_ask_for_others=token.may_ask_for_others,
    )


def _pending(agent: approval_pb.PendingAgent) -> PendingAgent:
    return PendingAgent(
        code=agent.code,
        key_id=agent.key_id,
        name=agent.name,
        host=agent.host,
        asked_at_sec=timestamp_sec(agent.asked_at),
    )


def _member(message: pb.Member) -> Member:
    return Member(
        key_id=message.key_id,
        name=message.name,
        role=_ROLES.get(message.role, Role.STRANGER),
        joined_at_sec=timestamp_sec(message.joined_at),
        device_names=tuple(message.device_names),
        revoked_at_sec=timestamp_sec(message.revoked_at) if message.HasField("revoked_at") else None,
        revoked_by=message.revoked_by,
        reason=message.reason,
        account=message.account,
        may_ask_for_others=message.may_ask_for_others,
    )


def _audit_entry(entry: pb.AuditEntry) -> AuditEntry:
    return AuditEntry(
        at_sec=timestamp_sec(entry.at),
        name=entry.name,
        role=entry.role,
        key_id=entry.key_id,
        peer=entry.peer,
        action=entry.action,
        subject=entry.subject,
        outcome=entry.outcome,
    )
