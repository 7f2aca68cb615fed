"""Limits of a relay's connections. Pure.

A client's certificate is encrypted for the agent, so the limits are by source address and agent.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.relay.refusal import Refusal, Refused

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """Most connections at the same time."""

    silent: int = 1_000
    """Without complete first bytes."""

    silent_of_source: int = 128
    total: int = 8_000
    of_source: int = 2_000
    """Per IPv4 address or IPv6 /64: an address translator of a lab hides all of its agents and clients."""

    of_agent: int = 64
    of_agent_and_source: int = 32
    """Of one agent, from one source: several sources can use a board at once."""


class Silent(Generic[T]):
    """Connections without complete first bytes. The oldest gives way to a new one, first of the same source."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._sources: dict[T, str] = {}
        """Oldest first."""

    def add(self, connection: T, source: str) -> T | None:
        """Add a connection; return the one to close, if there are too many."""
        of_source = [one for one, its_source in self._sources.items() if its_source == source]
        evicted = None
        if len(of_source) >= self._limits.silent_of_source:
            evicted = of_source[0]
        elif len(self._sources) >= self._limits.silent:
            evicted = next(iter(self._sources))
        if evicted is not None:
            del self._sources[evicted]
        self._sources[connection] = source
        return evicted

    def remove(self, connection: T) -> None:
        """Remove a connection. Idempotent."""
        self._sources.pop(connection, None)


class Places:
    """Counts connections."""

    def __init__(self, limits: RelayLimits) -> None:
        self._limits = limits
        self._taken = Counter[Hashable]()

    def count(self, key: Hashable = "all") -> int:
        """Return the number of connections under a key."""
        return self._taken[key]

    @contextlib.contextmanager
    def connection(self, source: str) -> Iterator[None]:
        """Count a connection for the duration of the block.

        Raises:
            Refused: there are too many.
        """
        limits = self._limits
        with (
            self._place("all", limits.total, Refusal.FULL),
            self._place(("source", source), limits.of_source, Refusal.FULL),
        ):
            yield

    @contextlib.contextmanager
    def client(self, source: str, key_id: str) -> Iterator[None]:
        """Count a client's connection to an agent.

        Raises:
            Refused: there are too many.
        """
        limits = self._limits
        with (
            self._place(("agent", key_id), limits.of_agent, Refusal.BUSY_AGENT),
            self._place(("agent", key_id, source), limits.of_agent_and_source, Refusal.BUSY_AGENT),
        ):
            yield

    @contextlib.contextmanager
    def _place(self, key: Hashable, most: int, reason: Refusal) -> Iterator[None]:
        if self._taken[key] >= most:
            raise Refused(reason)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
