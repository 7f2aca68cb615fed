"""Joining a fleet, and staying in it: keys and certificates of agents, people and optimizers.

The joining process has a join token. Its fingerprint is compared with the authority in the certificate that the tracker
shows; only then is the secret said, over TLS that this authority has signed.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import os
import socket
import ssl
from collections.abc import Awaitable
from typing import TypeVar

import grpc.aio

from fleet.base.network import host_and_port, host_of, is_loopback
from fleet.errors import FleetError, InvalidRequest, NotJoined, TrackerUnavailable, Unauthenticated
from fleet.identity import stranger
from fleet.identity.certificates import (
    authority_in,
    make_key,
    make_request,
    needs_renewal,
    pin_of,
    read_identity,
)
from fleet.identity.credentials import TRACKER_NAME, Credentials, Proof
from fleet.identity.join_tokens import JoinToken
from fleet.identity.roles import Identity, Role
from fleet.identity.store import CredentialStore
from fleet.v1 import identity_service_pb2 as pb
from fleet.wire.rpc import from_rpc_error, make_channel
from fleet.wire.stubs import IdentityServiceStub, identity_service_stub
from fleet.wire.times import duration

logger = logging.getLogger(__name__)

T = TypeVar("T")

ROLES = {
    Role.AGENT: pb.MEMBER_ROLE_AGENT,
    Role.USER: pb.MEMBER_ROLE_USER,
    Role.ADMIN: pb.MEMBER_ROLE_ADMIN,
    Role.STANDBY: pb.MEMBER_ROLE_STANDBY,
}
"""Roles that a join token can give."""

_TIMEOUT_SEC = 10.0


async def join(
    address: str,
    token: JoinToken,
    *,
    name: str,
    key_pem: bytes | None = None,
    roles: frozenset[Role] = frozenset(ROLES),
) -> tuple[Credentials, Identity]:
    """Redeem a join token; return credentials for the tracker at an address, and the identity in them.

    Args:
        name: name shown to others, unless the token has a note.
        key_pem: key to join with; None for a new one.
        roles: roles that the caller can use. A token for another role is refused, and stays usable.

    Raises:
        TrackerUnavailable: no tracker answers there.
        Unauthenticated: it is another fleet's than the token's, or the token is used, expired or unknown.
        InvalidRequest: the token is for another role.
    """
    authority_pem = await shown_authority(address)
    if pin_of(authority_pem) != token.pin:
        raise Unauthenticated(
            f"the tracker at {address} is not the one that the join token is for; nothing was said to it"
        )
    key_pem = key_pem or make_key()
    nobody = stranger_credentials(authority_pem)
    made, member = await _join(address, nobody, token.secret, name=name, key_pem=key_pem, roles=roles)
    if member.role not in roles:  # a tracker of the first releases ignores `roles`
        raise NotJoined(
            f"that was a join token for the role {member.role}, and is used up; "
            f"ask for another: fleet tracker token create --role {min(roles)}"
        )
    return made, member


def stranger_credentials(authority_pem: bytes) -> Credentials:
    """Return the public credentials of callers that have not joined, for the tracker of an authority."""
    return Credentials(key_pem=stranger.KEY_PEM, certificate_pem=stranger.CERTIFICATE_PEM, authority_pem=authority_pem)


async def admit_own(
    address: str, admin: Credentials, *, name: str, key_pem: bytes, role: Role = Role.AGENT
) -> Credentials:
    """Make an agent or a standby of this account a member, by this account's own credentials as an admin.

    Raises:
        TrackerUnavailable: the tracker does not answer.
        NotAllowed: they are no admin's.
    """
    async with make_channel(address, admin) as channel:
        request = pb.CreateJoinTokenRequest(role=ROLES[role], ttl=duration(60.0), note=name)
        created = await _answer(identity_service_stub(channel).create_join_token(request, timeout=_TIMEOUT_SEC))
    roles = frozenset({role})
    credentials, _ = await _join(address, admin, created.secret, name=name, key_pem=key_pem, roles=roles)
    return credentials


async def renewed(address: str, credentials: Credentials, now: dt.datetime) -> Credentials | None:
    """Return the same credentials with a newer certificate; None: renewal is not due yet.

    Raises:
        TrackerUnavailable: the tracker does not answer.
    """
    if not needs_renewal(credentials.certificate_pem, now):
        return None
    async with make_channel(address, credentials) as channel:
        stub: IdentityServiceStub = identity_service_stub(channel)
        answer = await _answer(stub.renew_certificate(pb.RenewCertificateRequest(), timeout=_TIMEOUT_SEC))
    return Credentials(
        key_pem=credentials.key_pem, certificate_pem=answer.certificate, authority_pem=credentials.authority_pem
    )


async def revoked_keys(address: str, proof: Proof) -> frozenset[str]:
    """Return the ids of all revoked keys.

    Raises:
        TrackerUnavailable: the tracker does not answer.
    """
    async with make_channel(address, proof) as channel:
        stub: IdentityServiceStub = identity_service_stub(channel)
        answer = await _answer(stub.list_revoked_keys(pb.ListRevokedKeysRequest(), timeout=_TIMEOUT_SEC))
    return frozenset(answer.key_ids)


async def find_proof(address: str, store: CredentialStore) -> Proof | None:
    """Return this account's credentials for a tracker: those stored for its address, else those for its authority.

    Raises:
        ConfigError: they cannot be used.
    """
    return store.find(address) or await _proof_by_authority(address, store)


async def find_member_proof(address: str, store: CredentialStore) -> Proof | None:
    """Return this account's credentials for a server other than a tracker, such as an optimizer: those for its
    authority.

    Credentials stored for its address belong to an earlier tracker there, and come last.

    Raises:
        ConfigError: they cannot be used.
    """
    return await _proof_by_authority(address, store) or store.find(address)


async def _proof_by_authority(address: str, store: CredentialStore) -> Proof | None:
    others = store.all()
    if not others:
        return None
    try:
        shown = pin_of(await shown_authority(address))
    except FleetError:
        return None
    return next((known for known in others if pin_of(known.authority_pem) == shown), None)


async def renew_account(address: str, proof: Proof, store: CredentialStore) -> None:
    """Renew this account's certificate for a tracker, wherever it is stored, if it is due.

    Best effort: weeks are left then.
    """
    if not isinstance(proof, Credentials):
        return
    try:
        fresh = await renewed(address, proof, dt.datetime.now(dt.UTC))
        if fresh is not None:
            store.replace(proof, fresh)
    except (FleetError, OSError) as error:
        logger.warning("certificate is not renewed yet", extra={"tracker": address, "reason": str(error)})


def why_no_tracker(address: str, credentials: Credentials) -> str:
    """Return why a tracker cannot be reached, in a sentence; empty: nothing answers there, or it is reachable by
    now.
    """
    context = _context(credentials)
    try:
        with (
            socket.create_connection(host_and_port(address), timeout=2.0) as connection,
            context.wrap_socket(connection, server_hostname=TRACKER_NAME),
        ):
            return ""
    except ssl.SSLCertVerificationError:
        return (
            f"the tracker at {address} is another one than these credentials are for, or its state was lost; "
            "if that is meant, join it again: fleet login (for an agent: fleet agent join)"
        )
    except (OSError, ssl.SSLError):
        return ""


async def _join(
    address: str, proof: Credentials, secret: bytes, *, name: str, key_pem: bytes, roles: frozenset[Role]
) -> tuple[Credentials, Identity]:
    async with make_channel(address, proof) as channel:
        request = pb.JoinRequest(
            secret=secret,
            certificate_request=make_request(key_pem),
            name=name,
            roles=[ROLES[role] for role in sorted(roles)],
        )
        answer = await _answer(identity_service_stub(channel).join(request, timeout=_TIMEOUT_SEC))
    made = Credentials(key_pem=key_pem, certificate_pem=answer.certificate, authority_pem=answer.authority)
    return made, read_identity(answer.certificate)


async def _answer(call: Awaitable[T]) -> T:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, TrackerUnavailable) from error


async def shown_authority(address: str) -> bytes:
    """Return the authority's certificate that a tracker presents, PEM, unverified.

    Raises:
        TrackerUnavailable: no tracker answers there.
        FleetError: it is another server.
    """
    return await asyncio.to_thread(_shown_authority, address)


def _shown_authority(address: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate is compared with the token's fingerprint
    _load(context, stranger.KEY_PEM + stranger.CERTIFICATE_PEM)
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection(host_and_port(address), timeout=_TIMEOUT_SEC) as connection,
            context.wrap_socket(connection, server_hostname=TRACKER_NAME) as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
    except (OSError, ssl.SSLError) as error:
        advice = "" if is_loopback(host_of(address)) else "; was it started with --allow-network?"
        raise TrackerUnavailable(f"no tracker answers at {address}: {error.strerror or error}{advice}") from error
    try:
        return authority_in(shown or b"")
    except InvalidRequest as error:
        raise FleetError(f"the server at {address} is no tracker of tvm-fleet") from error


def _context(credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=credentials.authority_pem.decode())
    _load(context, credentials.key_pem + credentials.certificate_pem)
    context.set_alpn_protocols(["h2"])
    return context


def _load(context: ssl.SSLContext, content: bytes) -> None:
    """Load a key through an in-memory file: Python's TLS takes files only, and a file on disk would survive a kill."""
    file = os.memfd_create("key")
    try:
        os.write(file, content)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
