"""Poison: programs during which a device faulted. The tracker keeps them, and agents refuse to run them unasked."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.errors import InvalidRequest

MAX_POISON = 1_000
"""Number of programs that a tracker or an agent remembers."""
KEPT_SEC = 7 * 86_400.0
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHOWN_CHARS = 80


def checked_digest(digest: str) -> str:
    """Return the digest of a program.

    Raises:
        InvalidRequest: it is malformed.
    """
    if not DIGEST.fullmatch(digest):
        raise InvalidRequest(
            f"the digest {digest[:_SHOWN_CHARS]!r} is malformed; write it like 'sha256:' and 64 digits"
        )
    return digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """A program that killed a device."""

    digest: str
    """ "sha256:<hex>" of the artifact."""
    device_name: str
    """Device that faulted."""
    at_sec: float
    """Time of the agent's report [s since 1970, the tracker's clock]."""
    reported_by: str = ""
    """Name of the agent that reported it; empty if an older tracker noted it."""

    @property
    def expires_sec(self) -> float:
        """Time when it is forgotten."""
        return self.at_sec + KEPT_SEC
