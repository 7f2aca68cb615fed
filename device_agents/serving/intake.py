"""Bounds on the requests of one session that the agent has in memory.

A session has places for calls, and one right to carry something large. Whoever gets no place is not read from: its
request waits at its sender. Each session has its own, so that no tenant waits for another one's requests.
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
"""Calls that wait for a place of one kind; each has a window of its stream in memory."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Calls that share places."""

    name: str
    places: int
    waits: bool = True
    """Whether a call waits for a place. Streams that last for the whole session are refused instead."""


_CALLS, _UPLOADS = Kind("calls", 4), Kind("uploads", 8)
_MEASURES, _LOGS = Kind("Measure streams", 4, waits=False), Kind("WatchLogs streams", 8, waits=False)
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
}
"""By method; others are control calls, which never wait for candidates."""


class Intake:
    """Memory quota of one session's calls."""

    def __init__(self, most_bytes: int = MAX_MESSAGE_BYTES) -> None:
        """Args:
        most_bytes: largest request, or answer, in pieces.
        """
        self.most_bytes = most_bytes
        self.carrying = asyncio.Lock()
        """Held by the one call that may have something large in memory."""

        self._places: dict[Kind, asyncio.Semaphore] = {}
        self._waiting: dict[Kind, int] = {}

    @contextlib.asynccontextmanager
    async def place(self, method: str) -> AsyncIterator[None]:
        """Hold a place for a call, from before its request is read.

        Raises:
            LimitReached: too many calls have one, or wait for one.
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
    """Return the most bytes that each session of an agent with so many devices may have in pieces."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = memory_bytes // _SHARE_OF_MEMORY // max(devices, 1)
    return max(min(share, worker_memory_bytes, MAX_MESSAGE_BYTES), _LEAST_SHARE_BYTES)
