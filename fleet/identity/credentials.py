"""Credentials of a process: a private key, a certificate, and the trusted authority. As one PEM text.

Reading needs no cryptography: a client only passes the three parts to gRPC.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from fleet.errors import ConfigError

TRACKER_NAME = "tracker.fleet"
"""The name in every tracker's certificate. Clients check this name at any address of the tracker: the authority tells
one fleet's tracker from another's."""

MEMBER_NAME = "member.fleet"
"""A name in the certificates of all users, including optimizers: they may serve others, but no devices."""

_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----\n?", re.DOTALL)
_KINDS = [b"PRIVATE KEY", b"CERTIFICATE", b"CERTIFICATE"]
_SECRET = b"FLEET SECRET"
_HEX = re.compile(rb"[^\n]*\n((?:[0-9a-f]{2})+)\n[^\n]*\n?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A key, its certificate and the certificate of the fleet's authority, each PEM."""

    key_pem: bytes
    certificate_pem: bytes
    authority_pem: bytes

    def __repr__(self) -> str:
        return "<Credentials>"  # a key must not get into a log

    def to_pem(self) -> bytes:
        return self.key_pem + self.certificate_pem + self.authority_pem


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSecret:
    """Proof of a process's account without TLS: the content of a file that only this account can read."""

    secret: bytes

    def __repr__(self) -> str:
        return "<PlainSecret>"

    def to_pem(self) -> bytes:
        return b"-----BEGIN FLEET SECRET-----\n" + self.secret.hex().encode() + b"\n-----END FLEET SECRET-----\n"


Proof: TypeAlias = Credentials | PlainSecret
"""Credentials that one side presents."""


def parse_proof(content: bytes, *, where: str) -> Proof:
    """Parse the output of `to_pem`. Text between the blocks is ignored.

    Raises:
        ConfigError: it is something else; `where` names the file.
    """
    blocks = list(_BLOCK.finditer(content))
    if [block[1] for block in blocks] == [_SECRET] and (secret := _HEX.fullmatch(blocks[0][0])):
        return PlainSecret(secret=bytes.fromhex(secret[1].decode()))
    if [block[1] for block in blocks] != _KINDS:
        raise ConfigError(f"{where} holds no credentials; remove it, and join again")
    key, certificate, authority = (block[0] for block in blocks)
    return Credentials(key_pem=key, certificate_pem=certificate, authority_pem=authority)


def agent_name(key_id: str) -> str:
    """Return the name in the certificate of the agent with this key."""
    return f"{key_id}.agent.fleet"
