"""The tracker's side of joining and of the audit log: fleet.v1.IdentityService."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable

from google.protobuf.message import Message

from fleet.base.clock import Clock
from fleet.base.text import sanitize
from fleet.domain.accounts import checked_new_account
from fleet.domain.reasons import checked_reason
from fleet.errors import InvalidRequest
from fleet.identity.audit_entry import AuditEntry
from fleet.identity.certificates import key_id_of, read_identity, read_request
from fleet.identity.join_tokens import digest_of, id_of, make_join_token
from fleet.identity.member import Member
from fleet.identity.policy import rule_of, short_name
from fleet.identity.roles import Identity, Role
from fleet.tracker.audit import AuditLog, read_entries
from fleet.tracker.authority import Authority
from fleet.tracker.expulsion import Expulsion
from fleet.tracker.members import Members, WaitingToken, revoked
from fleet.v1 import identity_service_pb2 as pb
from fleet.v1.agent_service_pb2 import AttachRequest
from fleet.v1.lease_service_pb2 import OpenLeasesRequest
from fleet.wire.joining import ROLES
from fleet.wire.peers import Attempt, CallContext, caller_of, caller_public_key
from fleet.wire.times import duration_sec, optional_timestamp, timestamp

logger = logging.getLogger(__name__)

_DEFAULT_TTL_SEC = 600.0
_MAX_TTL_SEC = 7 * 24 * 3600.0
_MAX_NOTE_CHARS = 200
_SHOWN_DEVICES = 20
"""Maximum number of an attaching agent's devices that the audit log lists."""
_USUAL_ENTRIES, _MAX_ENTRIES = 100, 10_000
_ROLES_BY_NUMBER = {number: role for role, number in ROLES.items()}
_JOINING = {Role.AGENT: "fleet agent join", Role.STANDBY: "fleet tracker join"}
"""Commands that use a token, by its role; else `fleet login`."""


class IdentityServicer:
    """fleet.v1.IdentityService."""

    def __init__(
        self, authority: Authority, members: Members, audit: AuditLog, clock: Clock, expulsion: Expulsion
    ) -> None:
        self._authority = authority
        self._members = members
        self._audit = audit
        self._clock = clock
        self._expulsion = expulsion

    async def join(self, request: pb.JoinRequest, context: CallContext) -> pb.JoinResponse:
        public_key, now = read_request(request.certificate_request), self._clock.now_sec()
        key_id, digest = key_id_of(public_key), digest_of(request.secret)
        self._members.refuse_revoked(key_id)
        _check_roles(self._members.find_token(digest, now).role, request.roles)
        token = self._members.use_token(digest, now)
        wanted = sanitize(token.note or request.name)
        name = self._members.free_name(wanted, key_id, reserved=self._authority.account_name)
        certificate = self._authority.sign(public_key, name=name, role=token.role)
        self._members.admit(
            read_identity(certificate), now, account=token.account, may_ask_for_others=token.may_ask_for_others
        )
        facts = {"member": name, "role": token.role, "key": key_id, "token": token.token_id}
        logger.info("member joined", extra=facts)
        return pb.JoinResponse(
            certificate=certificate,
            authority=self._authority.certificate_pem,
            role=ROLES[token.role],
        )

    async def renew_certificate(
        self, request: pb.RenewCertificateRequest, context: CallContext
    ) -> pb.RenewCertificateResponse:
        caller = caller_of(context)
        certificate = self._authority.sign(caller_public_key(context), name=caller.name, role=caller.role)
        return pb.RenewCertificateResponse(certificate=certificate)

    async def create_join_token(
        self, request: pb.CreateJoinTokenRequest, context: CallContext
    ) -> pb.CreateJoinTokenResponse:
        role = _ROLES_BY_NUMBER.get(request.role)
        if role is None:
            raise InvalidRequest("a join token is for an agent, a user, an admin or a standby; name one as the role")
        ttl_sec = duration_sec(request.ttl) if request.HasField("ttl") else _DEFAULT_TTL_SEC
        if not 0 < ttl_sec <= _MAX_TTL_SEC:
            raise InvalidRequest(f"a join token lives for up to {_MAX_TTL_SEC / 3600:.0f} h, not for {ttl_sec:g} s")
        account = checked_new_account(request.account)
        if role in (Role.AGENT, Role.STANDBY) and (account or request.may_ask_for_others):
            raise InvalidRequest(f"the role {role} acquires no devices; an account is for the roles user and admin")
        now = self._clock.now_sec()
        token = make_join_token(self._authority.pin)
        waiting = WaitingToken(
            digest=token.digest,
            role=role,
            created_at_sec=now,
            expires_at_sec=now + ttl_sec,
            created_by=str(caller_of(context)),
            note=sanitize(request.note, _MAX_NOTE_CHARS),
            account=account,
            may_ask_for_others=request.may_ask_for_others,
        )
        self._members.add_token(waiting, now)
        return pb.CreateJoinTokenResponse(secret=token.secret, token=_to_proto(waiting))

    async def list_join_tokens(
        self, request: pb.ListJoinTokensRequest, context: CallContext
    ) -> pb.ListJoinTokensResponse:
        return pb.ListJoinTokensResponse(tokens=map(_to_proto, self._members.tokens(self._clock.now_sec())))

    async def revoke_join_token(
        self, request: pb.RevokeJoinTokenRequest, context: CallContext
    ) -> pb.RevokeJoinTokenResponse:
        self._members.revoke_token(request.token_id, self._clock.now_sec())
        return pb.RevokeJoinTokenResponse()

    async def unbind_device(self, request: pb.UnbindDeviceRequest, context: CallContext) -> pb.UnbindDeviceResponse:
        key_id = self._members.unbind(request.device_name)
        logger.info("device name freed", extra={"device": request.device_name, "key": key_id})
        return pb.UnbindDeviceResponse(key_id=key_id)

    async def list_members(self, request: pb.ListMembersRequest, context: CallContext) -> pb.ListMembersResponse:
        return pb.ListMembersResponse(members=map(member_to_proto, self._members.all()))

    async def revoke_member(self, request: pb.RevokeMemberRequest, context: CallContext) -> pb.RevokeMemberResponse:
        caller, key_id = caller_of(context), self._members.find(request.key_id)
        if key_id == caller.key_id:
            raise InvalidRequest("this is the key that you call with; have another admin revoke it")
        reason, now = checked_reason(request.reason), self._clock.now_sec()
        member, freed = self._members.revoke(key_id, now, by=str(caller), reason=reason)
        logger.warning("member's key revoked", extra={"member": member.name, "key": key_id, "by": str(caller)})
        ended = await self._expulsion.expel(key_id, revoked(member))
        return pb.RevokeMemberResponse(member=member_to_proto(member), ended_leases=ended, freed_devices=freed)

    async def list_revoked_keys(
        self, request: pb.ListRevokedKeysRequest, context: CallContext
    ) -> pb.ListRevokedKeysResponse:
        return pb.ListRevokedKeysResponse(key_ids=self._members.revoked_keys())

    async def list_audit_entries(
        self, request: pb.ListAuditEntriesRequest, context: CallContext
    ) -> pb.ListAuditEntriesResponse:
        limit = min(request.limit or _USUAL_ENTRIES, _MAX_ENTRIES)
        return await asyncio.to_thread(_entries, self._audit.newest(limit), limit)  # ten thousand take 0.1 s


def _check_roles(role: Role, wanted: Iterable[pb.MemberRole]) -> None:
    """Refuse a token for another role than the caller's, without using it up.

    Raises:
        InvalidRequest: the message names the right command.
    """
    roles = {_ROLES_BY_NUMBER.get(number) for number in wanted}
    if not roles or role in roles:
        return
    command = _JOINING.get(role, "fleet login")
    raise InvalidRequest(
        f"this join token is for the role {role}, and was not used up; the command for it is: {command}"
    )


def auditor(audit: AuditLog, clock: Clock, name_of: Callable[[str], str]) -> Callable[[Attempt], None]:
    """Return the function that writes calls of audited rpcs into the log.

    Args:
        name_of: returns the name of the member with a key; empty for unknown keys.
    """

    def write(attempt: Attempt) -> None:
        caller: Identity = attempt.caller
        audit.write(
            AuditEntry(
                at_sec=clock.now_sec(),
                name=caller.name,
                role=caller.role,
                key_id=caller.key_id,
                peer=attempt.peer,
                action=short_name(attempt.rpc),
                subject=_subject(attempt, name_of),
                outcome="ok" if attempt.error is None else type(attempt.error).__name__,
            )
        )

    return write


def _subject(attempt: Attempt, name_of: Callable[[str], str]) -> str:
    """Return the object of a call; for a stream, its first message. A hello may be long, and a client's id is
    secret.
    """
    match attempt.request:
        case AttachRequest(hello=hello):
            names = [device.name for device in hello.devices[:_SHOWN_DEVICES]]
            more = {"more": len(hello.devices) - len(names)} if len(hello.devices) > len(names) else {}
            return json.dumps({"address": hello.address, "devices": names, **more})
        case OpenLeasesRequest(hello=hello):
            return json.dumps({"note": hello.holder})
        case pb.JoinRequest() as request:
            return json.dumps(_joiner(request, name_of))
        case Message() as request:
            return _shown(request, rule_of(attempt.rpc).hidden)
    return ""


def _joiner(request: pb.JoinRequest, name_of: Callable[[str], str]) -> dict[str, str]:
    """Return name, key and token of a Join call, including a refused one, so that an admin can compare the key."""
    try:
        key_id = key_id_of(read_request(request.certificate_request))
    except InvalidRequest:
        key_id = ""
    name = name_of(key_id) or sanitize(request.name, _MAX_NOTE_CHARS)
    return {"name": name, "key": key_id, "token": id_of(digest_of(request.secret))}


def _shown(request: Message, hidden: Iterable[str]) -> str:
    from google.protobuf import json_format, text_format  # takes 3 ms, which would delay the tracker's start

    public = type(request)()
    public.CopyFrom(request)
    for name in hidden:
        public.ClearField(name)
    try:
        return json_format.MessageToJson(public, preserving_proto_field_name=True, indent=None)
    except json_format.SerializeToJsonError:  # a moment that no calendar has
        return text_format.MessageToString(public, as_one_line=True)


def _entries(lines: list[bytes], limit: int) -> pb.ListAuditEntriesResponse:
    return pb.ListAuditEntriesResponse(entries=map(_entry_to_proto, read_entries(lines, limit)))


def _to_proto(token: WaitingToken) -> pb.JoinToken:
    return pb.JoinToken(
        token_id=token.token_id,
        role=ROLES[Role(token.role)],
        created_at=timestamp(token.created_at_sec),
        expires_at=timestamp(token.expires_at_sec),
        created_by=token.created_by,
        note=token.note,
        account=token.account,
        may_ask_for_others=token.may_ask_for_others,
    )


def member_to_proto(member: Member) -> pb.Member:
    """Return the message of a member."""
    return pb.Member(
        key_id=member.key_id,
        name=member.name,
        role=ROLES.get(member.role, pb.MEMBER_ROLE_UNSPECIFIED),
        joined_at=timestamp(member.joined_at_sec),
        device_names=member.device_names,
        revoked_by=member.revoked_by,
        reason=member.reason,
        revoked_at=optional_timestamp(member.revoked_at_sec),
        account=member.account,
        may_ask_for_others=member.may_ask_for_others,
    )


def _entry_to_proto(entry: AuditEntry) -> pb.AuditEntry:
    return pb.AuditEntry(
        at=timestamp(entry.at_sec),
        name=entry.name,
        role=entry.role,
        key_id=entry.key_id,
        peer=entry.peer,
        action=entry.action,
        subject=entry.subject,
        outcome=entry.outcome,
    )
