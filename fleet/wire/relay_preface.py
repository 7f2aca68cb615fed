"""First bytes of an agent's connection to its relay for one client: a magic number and the secret of the client.

They travel without encryption. A secret is good once, for a few seconds, and only joins two connections whose ends
authenticate each other.
"""

from __future__ import annotations

MAGIC = b"fleetRLY"
"""Starts with no byte of a TLS record."""

SECRET_BYTES = 16
PREFACE_BYTES = len(MAGIC) + SECRET_BYTES


def make_preface(secret: bytes) -> bytes:
    """Return the preface of a connection for the client with this secret."""
    return MAGIC + secret


def secret_in(preface: bytes) -> bytes | None:
    """Return the secret of a preface, or None for other bytes."""
    if len(preface) != PREFACE_BYTES or not preface.startswith(MAGIC):
        return None
    return preface[len(MAGIC) :]
