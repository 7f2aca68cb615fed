"""Identity and role of a caller. Separate from the certificates' module, which is slow to import."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Rights follow from the role; see `fleet.identity.policy`."""

    TRACKER = "tracker"
    AGENT = "agent"
    USER = "user"
    ADMIN = "admin"
    STANDBY = "standby"
    """A tracker that follows; it gets the fleet's keys."""
    STRANGER = "stranger"
    """Has not joined: may only join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Identity of a caller."""

    name: str
    """Readable name; not unique."""
    role: Role
    key_id: str
    """SHA-256 of the public key, the first 40 hex digits."""

    def __str__(self) -> str:
        return f"{self.role} {self.name} ({self.key_id[:8]})"
