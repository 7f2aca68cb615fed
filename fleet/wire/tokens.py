"""Tokens on the wire: the serialised, signed claims of a lease, which travel as bytes in a header of every call."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from fleet.domain.tokens import Claims, TokenSigner, TokenVerifier
from fleet.errors import Unauthenticated
from fleet.v1 import lease_pb2
from fleet.wire.times import timestamp, timestamp_sec

TOKEN_HEADER = "fleet-token-bin"  # noqa: S105 - the name of a header
"""Metadata key that carries the token; the suffix tells gRPC that the value is binary."""

TICKET_HEADER = "fleet-upload-ticket-bin"
"""Metadata key that carries a ticket for uploads instead of a token."""


def sign_claims(claims: Claims, signer: TokenSigner) -> lease_pb2.Token:
    """Return the token that proves these claims."""
    content = lease_pb2.LeaseClaims(
        lease_name=claims.lease_name,
        device_name=claims.device_name,
        epoch=claims.epoch,
        holder=claims.holder,
        issued_at=timestamp(claims.issued_at_sec),
        expires_at=timestamp(claims.expires_at_sec),
        nonce=claims.nonce,
        holder_key_id=claims.holder_key_id,
    ).SerializeToString()
    return lease_pb2.Token(claims=content, signature=signer.sign(content))


def verify_token(token: bytes, verifier: TokenVerifier) -> Claims:
    """Return the claims of a token that the tracker signed. Says nothing about time, epoch or device.

    Raises:
        Unauthenticated: it is not a token, or the tracker did not sign it.
    """
    message = _parsed(token)
    verifier.verify(message.claims, message.signature)
    return _claims(message)


def read_claims(token: bytes) -> Claims:
    """Return the content of a token without checking its signature.

    Raises:
        Unauthenticated: it is not a token.
    """
    return _claims(_parsed(token))


def _parsed(token: bytes) -> lease_pb2.Token:
    try:
        return lease_pb2.Token.FromString(token)
    except DecodeError:
        raise Unauthenticated(f"the metadata {TOKEN_HEADER!r} holds no token; acquire a lease first") from None


def _claims(token: lease_pb2.Token) -> Claims:
    try:
        message = lease_pb2.LeaseClaims.FromString(token.claims)
    except DecodeError:
        raise Unauthenticated("the token has no valid claims; acquire a lease first") from None
    return Claims(
        lease_name=message.lease_name,
        device_name=message.device_name,
        epoch=message.epoch,
        holder=message.holder,
        issued_at_sec=timestamp_sec(message.issued_at),
        expires_at_sec=timestamp_sec(message.expires_at),
        nonce=message.nonce,
        holder_key_id=message.holder_key_id,
    )
