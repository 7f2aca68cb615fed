"""Join tokens: a secret for joining a fleet once, with the fingerprint of the fleet's authority.

    fleet1.<secret, 22 characters>.<fingerprint, 43 characters>

The fingerprint makes the joining side sure of the tracker before it sends the secret. The tracker keeps only the
secret's hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from dataclasses import dataclass

from fleet.errors import InvalidRequest

_VERSION = "fleet1"
_SECRET_BYTES = 16
_PIN_BYTES = 32
_ID_CHARS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """Token for joining a fleet once."""

    secret: bytes
    pin: bytes
    """SHA-256 of the authority's certificate."""

    def __str__(self) -> str:
        return ".".join((_VERSION, _text(self.secret), _text(self.pin)))

    @property
    def digest(self) -> str:
        """The part that the tracker stores."""
        return digest_of(self.secret)

    @property
    def token_id(self) -> str:
        """Public id of the token."""
        return id_of(self.digest)


def make_join_token(pin: bytes) -> JoinToken:
    """Return a new token for the fleet with this authority."""
    return JoinToken(secret=secrets.token_bytes(_SECRET_BYTES), pin=pin)


def parse_join_token(text: str) -> JoinToken:
    """Read a token.

    Raises:
        InvalidRequest: it is cut off, or something else.
    """
    version, _, rest = text.strip().partition(".")
    secret, _, pin = rest.partition(".")
    try:
        token = JoinToken(secret=_bytes(secret), pin=_bytes(pin))
    except (ValueError, binascii.Error):
        token = JoinToken(secret=b"", pin=b"")
    if version != _VERSION or len(token.secret) != _SECRET_BYTES or len(token.pin) != _PIN_BYTES:
        raise InvalidRequest(
            "this is no join token; it looks like fleet1.XXXX.XXXX and is made by: fleet tracker token create"
        )
    return token


def digest_of(secret: bytes) -> str:
    """Return the hash that identifies a token, hex."""
    return hashlib.sha256(secret).hexdigest()


def id_of(digest: str) -> str:
    """Return the public id of the token with this hash."""
    return digest[:_ID_CHARS]


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
