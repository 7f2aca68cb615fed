"""Ends a member's streams, leases and devices when its key is revoked."""

from __future__ import annotations

import asyncio

from fleet.errors import FleetError
from fleet.tracker.core import events as ev
from fleet.tracker.core.records import LeaseEntry
from fleet.tracker.engine import Engine
from fleet.tracker.messages import key_of
from fleet.wire.open_streams import OpenStreams


class Expulsion:
    """Ends streams and leases of revoked keys. Their next calls are refused by the guard, which checks the members."""

    def __init__(self, engine: Engine, streams: OpenStreams) -> None:
        self._engine = engine
        self._streams = streams

    async def expel(self, key_id: str, error: FleetError) -> list[str]:
        """End all streams, leases and devices of a key; return the sorted names of the leases.

        The streams end first: their requests are dropped then, and must not be granted the leases that end here.
        """
        await self._streams.end(key_id, error)
        held = {lease.name: self._reason(lease, key_id) for lease in self._engine.queries.leases()}
        ending = [ev.Revoke(name, reason) for name, reason in sorted(held.items()) if reason]
        effects = await asyncio.gather(*map(self._engine.ask, ending))
        return [effect.lease.name for found in effects for effect in found if isinstance(effect, ev.Revoked)]

    def _reason(self, lease: LeaseEntry, key_id: str) -> str:
        """Return the reason why a lease ends with a key; empty: it does not."""
        if key_of(lease.client_id) == key_id:
            return "the key of its holder was revoked"
        served_by = self._engine.queries.leased_device(lease).agent_key_id
        return "the key of its device's agent was revoked" if served_by == key_id else ""
