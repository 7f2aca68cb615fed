"""Poison: programs during which a device faulted. The tracker keeps them, and agents refuse to run them unasked."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_POISON = 1_000
"""Number of programs that a tracker or an agent remembers."""
KEPT_SEC = 7 * 86_400.0
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Poison:
    """A program that killed a device."""

    digest: str
    """ "sha256:<hex>" of the artifact."""
    device_name: str
    """Device that faulted."""
    at_sec: float
    """Time of the agent's report [s since 1970, the tracker's clock]."""

    @property
    def expires_sec(self) -> float:
        """Time when it is forgotten."""
        return self.at_sec + KEPT_SEC
