"""Per-session limits on requests that the agent holds in memory.

A session has a number of places for calls, and one lock for a large message. The agent does not read the request of a
call without a place, so backpressure keeps it at its sender. Limits are per session: no tenant waits for another's
requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from fleet.errors import LimitReached
from fleet.wire.options import MAX_MESSAGE_BYTES

_LEAST_SHARE_BYTES = 16 * 1024 * 1024
_SHARE_OF_MEMORY = 8
_MOST_WAITING = 16
"""Most calls that wait for a place of one kind; each has a flow-control window of its stream in memory."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Calls that share a limited number of slots."""

    name: str
    places: int
    waits: bool = True
    """True if a call waits for a slot. Streams that last for the whole session are refused instead."""


_CALLS, _UPLOADS = Kind("calls", 4), Kind("uploads", 8)
_MEASURES, _LOGS = Kind("Measure streams", 4, waits=False), Kind("WatchLogs streams", 8, waits=False)
_TUNNELS = Kind("Tunnel streams", 2)
_CONTROL = Kind("control calls", 4)
_KINDS: Mapping[str, Kind] = {
    "Call": _CALLS,
    "CallInPieces": _CALLS,
    "Prove": _CALLS,
    "ProveInPieces": _CALLS,
    "Program": _CALLS,
    "FindMissing": _UPLOADS,
    "PutArtifact": _UPLOADS,
    "Measure": _MEASURES,
    "WatchLogs": _LOGS,
    "Tunnel": _TUNNELS,
}
"""Kinds by method. All other methods are control calls, which never wait for candidates."""


class Intake:
    """Memory quota of one session's calls."""

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Args:
        most_bytes: size of the largest request or response in chunks.
        """
        self.most_bytes = most_bytes
        self.carrying = asyncio.Lock()
        """Lock of the one call that may hold a large message in memory."""

        self._places: dict[Kind, asyncio.Semaphore] = {}
        self._waiting: dict[Kind, int] = {}

    @contextlib.asynccontextmanager
    async def place(self, method: str) -> AsyncIterator[None]:
        """Hold a slot for a call. Enter before the call's request is read.

        Raises:
            LimitReached: too many calls of this kind hold or await a place.
        """
        kind = _KINDS.get(method, _CONTROL)
        places = self._places.setdefault(kind, asyncio.Semaphore(kind.places))
        waiting = self._waiting.get(kind, 0)
        if places.locked() and (not kind.waits or waiting >= _MOST_WAITING):
            raise LimitReached(
                f"this session has {kind.places} {kind.name} under way{f' and {waiting} waiting' if waiting else ''}; "
                "try again when one of them has ended"
            )
        self._waiting[kind] = waiting + 1
        try:
            await places.acquire()
        finally:
            self._waiting[kind] -= 1
        try:
            yield
        finally:
            places.release()


def share_bytes(devices: int, worker_memory_bytes: int) -> int:
    """Return the size limit of a chunked request, per session of an agent with that number of devices [bytes]."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = memory_bytes // _SHARE_OF_MEMORY // max(devices, 1)
    return max(min(share, worker_memory_bytes, MAX_MESSAGE_BYTES), _LEAST_SHARE_BYTES)
