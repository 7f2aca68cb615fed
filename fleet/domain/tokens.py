"""Signed proofs of leases: their claims, and the keys that sign them (the tracker's) and check them (the agents').

The signature (Ed25519, RFC 8032) covers a prefix of our own and exactly the bytes that are sent, so there is nothing to
canonicalise and nothing to negotiate. `fleet.wire.tokens` makes the bytes.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fleet.base.private_files import write_private
from fleet.errors import ConfigError, Unauthenticated

EPOCHS_END = 2**62
"""No tracker counts that far: counted from a clock in the year 2109 it would."""

_DOMAIN = b"fleet.v1.LeaseClaims\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """Claims of a token. Times are on the tracker's clock [s since 1970]."""

    lease_name: str
    device_name: str
    epoch: int
    holder: str = ""
    issued_at_sec: float = 0.0
    expires_at_sec: float = 0.0
    nonce: str = ""
    """Nonce that the device's agent expects."""
    holder_key_id: str = ""
    """Key of the holder's certificate; from any other connection the token is refused. Empty without TLS."""


def new_nonce() -> str:
    """Return a text unique to this start of a tracker. It is part of every token and lease name, and not secret."""
    return secrets.token_hex(6)


class TokenSigner:
    """Holds the tracker's private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public_key(self) -> bytes:
        """The 32 bytes with which agents check signatures."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of serialised claims."""
        return self._key.sign(_DOMAIN + content)


class TokenVerifier:
    """Checks signatures with the tracker's public key."""

    def __init__(self, public_key: bytes) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(public_key)

    def verify(self, content: bytes, signature: bytes) -> None:
        """Check that the tracker signed these serialised claims.

        Raises:
            Unauthenticated: it did not.
        """
        try:
            self._key.verify(signature, _DOMAIN + content)
        except InvalidSignature:
            raise Unauthenticated("the token was not signed by this fleet's tracker; acquire a lease from it") from None


def load_or_make_key(path: Path) -> Ed25519PrivateKey:
    """Read the private key at `path`, or create one (mode 0600, written atomically).

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
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(path, pem)
    return key
