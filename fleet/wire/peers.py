"""Identities of peers: TLS between the fleet's processes, and a server's facts about its callers.

Both sides show certificates of the fleet's authority. A client checks that the server has the name that it expects,
not the address that it dialled: an address may change, and anybody may take it.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

import grpc

from fleet.errors import InvalidRequest, Unauthenticated
from fleet.identity.credentials import Credentials, PlainSecret
from fleet.identity.policy import check_role, rule_of
from fleet.identity.roles import Identity, Role
from fleet.identity.stranger import CERTIFICATE_PEM as STRANGER_PEM
from fleet.wire.connections import Connections
from fleet.wire.open_streams import OpenStream, OpenStreams

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

logger = logging.getLogger(__name__)

SECRET_HEADER = "fleet-secret-bin"  # noqa: S105 - the name of a header
"""Metadata key of the secret where there is no TLS."""

_CERTIFICATE = "x509_pem_cert"
_LOCAL = Identity(name="local", role=Role.ADMIN, key_id="")
_UNKNOWN = Identity(name="unknown", role=Role.STRANGER, key_id="")


class CallContext(Protocol):
    """The part of `grpc.aio.ServicerContext` that our services use."""

    def peer(self) -> str:
        """Address of the caller, "ipv4:127.0.0.1:4000"."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """TLS properties of the caller; empty without TLS."""
        ...

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None:
        """Headers of the call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call of an audited rpc, and its result."""

    caller: Identity
    peer: str
    rpc: str
    request: object
    """The message, of a stream the first one; None where it was refused before it was read, and at a stream's end."""
    error: Exception | None


class Guard:
    """Authorises calls for a server before the request is parsed."""

    def __init__(
        self,
        *,
        secret: Callable[[], PlainSecret | None] | None = None,
        audit: Callable[[Attempt], None] = lambda attempt: None,
        check_member: Callable[[Identity], None] = lambda caller: None,
        request_sec: float = 10.0,
    ) -> None:
        """Args:
        secret: without TLS, returns the secret that callers have to present, with all rights. None: there is TLS.
        audit: called with every call that the policy marks for the audit log.
        check_member: refuses former members.
        request_sec: time limit of a caller's request; large arrays may take longer.
        """
        self.request_sec = request_sec
        self._secret = secret
        self._audit = audit
        self._check_member = check_member
        self.streams = OpenStreams()
        self.connections = Connections()

    def admit(self, rpc: str, context: CallContext) -> Identity:
        """Authorise a call and return the caller.

        Raises:
            Unauthenticated: the caller does not know the secret, or came without a certificate where there is none.
            NotAllowed: this takes another role; KeyRevoked: the caller is no member any more.
        """
        if self._secret is not None:
            _check_secret(self._secret(), context)
            self.connections.note_member(context.peer())
            return _LOCAL
        certificate = _certificate(context)
        if certificate is None:
            raise Unauthenticated("this server takes calls over TLS only, from members of its fleet")
        # TLS checks only at a connection's start, and a connection may last for months
        if _ends_at_sec(certificate) <= time.time():
            raise Unauthenticated("the certificate of this connection has ended; connect again with a newer one")
        caller = _identity(certificate)
        if caller.role is not Role.STRANGER:
            self._check_member(caller)
            self.connections.note_member(context.peer())
        check_role(rpc, caller)
        return caller

    @contextlib.contextmanager
    def serving(self, context: CallContext) -> Iterator[OpenStream]:
        """Register a caller's stream for the duration of the block; see `streams`."""
        certificate = _certificate(context)
        ends_at_sec = math.inf if certificate is None else _ends_at_sec(certificate)
        with self.streams.entered(caller_of(context).key_id, ends_at_sec) as stream:
            yield stream

    def note(self, rpc: str, context: CallContext, request: object, error: Exception | None) -> None:
        """Audit a call, if the policy requires it."""
        if not rule_of(rpc).is_audited:
            return
        is_unknown = _certificate(context) is None and isinstance(error, Unauthenticated)
        caller = _UNKNOWN if is_unknown else caller_of(context)
        self._audit(Attempt(caller=caller, peer=context.peer(), rpc=rpc, request=request, error=error))


def peer_host(peer: str) -> str:
    """Return the host of a peer's address, "ipv4:127.0.0.1:4000"; empty for other kinds of addresses."""
    return unquote(peer).partition(":")[2].rpartition(":")[0]


def caller_of(context: CallContext) -> Identity:
    """Return the caller. Without TLS that is this account, with every right: the guard has checked its secret."""
    certificate = _certificate(context)
    return _LOCAL if certificate is None else _identity(certificate)


def caller_public_key(context: CallContext) -> ec.EllipticCurvePublicKey:
    """Return the key of the caller's certificate.

    Raises:
        InvalidRequest: there is no TLS.
    """
    certificate = _certificate(context)
    if certificate is None:
        raise InvalidRequest("this fleet runs without TLS, so that nobody has a certificate")
    from fleet.identity.certificates import public_key_of

    return public_key_of(certificate)


def server_security(current: Callable[[], Credentials], *, admits_strangers: bool = False) -> grpc.ServerCredentials:
    """Return TLS for a server that asks its clients for certificates of the same authority.

    Args:
        current: returns the credentials; called for every new connection, so that a renewed certificate is used at
        once. admits_strangers: admit clients that have not joined, too; the guard limits their rights.
    """
    configurations = _Configurations(current, admits_strangers)
    return grpc.dynamic_ssl_server_credentials(
        configurations.now(),
        configurations.changed,  # type: ignore[arg-type] # None is allowed: what is shown stays
        require_client_authentication=True,
    )


def channel_security(credentials: Credentials) -> grpc.ChannelCredentials:
    """Return TLS for a channel."""
    return grpc.ssl_channel_credentials(
        root_certificates=credentials.authority_pem,
        private_key=credentials.key_pem,
        certificate_chain=credentials.certificate_pem,
    )


class _Configurations:
    """Converts a server's credentials for gRPC, once for each change. Called by gRPC's own threads."""

    def __init__(self, current: Callable[[], Credentials], admits_strangers: bool) -> None:
        self._current = current
        self._strangers = STRANGER_PEM if admits_strangers else b""
        self._shown: Credentials | None = None

    def now(self) -> grpc.ServerCertificateConfiguration:
        credentials = self._shown = self._current()
        return grpc.ssl_server_certificate_configuration(
            [(credentials.key_pem, credentials.certificate_pem)],
            root_certificates=credentials.authority_pem + self._strangers,
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new credentials, or None if they have not changed."""
        try:
            return None if self._current() == self._shown else self.now()
        except Exception:  # in a thread of gRPC an exception would be lost, together with the connection
            logger.exception("cannot change the certificate that is shown")
            return None


def _certificate(context: CallContext) -> bytes | None:
    """Return the caller's certificate, PEM, or None without TLS."""
    shown = next(iter(context.auth_context().get(_CERTIFICATE, ())), None)
    return None if shown is None else bytes(shown)


@functools.lru_cache(maxsize=4096)
def _identity(certificate_pem: bytes) -> Identity:
    """Return the identity in a certificate. Cached: reading one takes 50 us, and few connections make many calls."""
    from fleet.identity.certificates import read_identity  # clients read none, and it takes 15 ms

    return read_identity(certificate_pem)


@functools.lru_cache(maxsize=4096)
def _ends_at_sec(certificate_pem: bytes) -> float:
    from fleet.identity.certificates import end_of

    return end_of(certificate_pem).timestamp()


def _check_secret(secret: PlainSecret | None, context: CallContext) -> None:
    shown = next((value for key, value in context.invocation_metadata() or () if key == SECRET_HEADER), b"")
    if secret is None or not isinstance(shown, bytes) or not hmac.compare_digest(shown, secret.secret):
        raise Unauthenticated("this account cannot read the secret of the fleet, which runs without TLS")
