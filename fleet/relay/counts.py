"""Figures of a relay, for its metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class RelayCounts:
    """Counts since the relay's start, and of now."""

    agents: int = 0
    """Registered agents."""

    connections: int = 0
    """Connections that are open."""

    clients: int = 0
    """Connections between a client and an agent that are open."""

    ended_clients: int = 0
    carried_bytes: int = 0
    """Between clients and agents, both directions."""

    refusals: Counter[str] = field(default_factory=Counter)
    """Closed connections that led nowhere, by reason."""
