"""Who somebody is, and as what. Apart from what certificates are made of, which takes long to import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What somebody may do follows from this; see `fleet.identity.policy`."""

    TRACKER = "tracker"
    AGENT = "agent"
    USER = "user"
    ADMIN = "admin"
    STRANGER = "stranger"
    """Has not joined: may only join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who somebody is."""

    name: str
    """For people; not unique."""
    role: Role
    key_id: str
    """SHA-256 of the public key, the first 40 hex digits."""

    def __str__(self) -> str:
        return f"{self.role} {self.name} ({self.key_id[:8]})"
