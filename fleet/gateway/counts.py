"""Figures of a gateway, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class GatewayCounts:
    """Counts since the gateway's start, and of now."""

    connections: int = 0
    """Open connections."""

    sessions: int = 0
    """RPC sessions that run."""

    ended_sessions: int = 0
    grants: int = 0
    """Devices granted to clients."""

    refusals: Counter[str] = field(default_factory=Counter)
    """Requests that ended without a device, by the class of the error."""
