"""Signed proofs of leases: made by the tracker, checked by agents offline.

A token is serialised `LeaseClaims` and an Ed25519 signature (RFC 8032) over a domain prefix and exactly those bytes,
so there is nothing to canonicalise and nothing to negotiate.
"""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleet.errors import ConfigError, Unauthenticated
from fleet.v1 import lease_pb2

_DOMAIN = b"fleet.v1.LeaseClaims\0"


class TokenSigner:
    """Holds the tracker's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public_key(self) -> bytes:
        """32 bytes, what agents check with."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, claims: lease_pb2.LeaseClaims) -> lease_pb2.Token:
        """Return the token for these claims."""
        content = claims.SerializeToString()
        return lease_pb2.Token(claims=content, signature=self._key.sign(_DOMAIN + content))


class TokenVerifier:
    """Checks tokens with the tracker's public key."""

    def __init__(self, public_key: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(public_key)

    def verify(self, token: lease_pb2.Token) -> lease_pb2.LeaseClaims:
        """Return the claims of a token that the tracker signed. Says nothing about time, epoch or device.

        Raises:
            Unauthenticated: the signature is not the tracker's.
        """
        try:
            self._key.verify(token.signature, _DOMAIN + token.claims)
        except InvalidSignature:
            raise Unauthenticated("the token was not signed by this fleet's tracker; acquire a lease from it") from None
        return lease_pb2.LeaseClaims.FromString(token.claims)


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key at `path`, making one (mode 0600, written atomically) when there is none.

    Raises:
        ConfigError: the file holds something else.
    """
    if path.exists():
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"{path} holds no Ed25519 key; move it away and start again to get a new one")
        return key
    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # left by an earlier process of this number, as in a container, where all are 1
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    return key
