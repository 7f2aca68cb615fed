"""The one watch of the tracker behind all viewers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

from fleet.client.aio import Fleet
from fleet.domain.snapshot import Snapshot
from fleet.errors import TrackerUnavailable

_LEAST_SEC = 1.0
"""Least time between two snapshots."""
_SILENT_SEC = 15.0
"""A stream writes at least this often, so that the end of its browser is noticed."""


class Feed:
    """Latest snapshot of the fleet, and streams of its versions."""

    def __init__(self, client: Fleet) -> None:
        self._client = client
        self._snapshot: Snapshot | None = None
        self._received_sec = 0.0
        self._changed = asyncio.Event()
        self.version = 0
        """Number of snapshots so far."""

    async def run(self) -> None:
        """Watch the tracker.

        Raises:
            FleetError: the tracker does not show the fleet to this account any more.
        """
        async with aclosing(self._client.watch(_LEAST_SEC)) as snapshots:
            async for snapshot in snapshots:
                self._take(snapshot)

    async def refresh(self) -> None:
        """Read the fleet now, so that the next page shows the effect of a form.

        Raises:
            TrackerUnavailable: the tracker does not answer at this moment.
        """
        self._take(await self._client.snapshot())

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot.

        Raises:
            TrackerUnavailable: there is none yet.
        """
        if self._snapshot is None:
            raise TrackerUnavailable(f"no answer of the tracker at {self._client.address} yet; try again")
        return self._snapshot

    @property
    def now_sec(self) -> float:
        """The tracker's clock [s since 1970]."""
        return self.snapshot.taken_at_sec + time.monotonic() - self._received_sec

    async def versions(self) -> AsyncIterator[int | None]:
        """Yield the version after each change, and None after a silence."""
        known = self.version
        while True:
            changed = self._changed
            if known == self.version:
                try:
                    await asyncio.wait_for(changed.wait(), _SILENT_SEC)
                except TimeoutError:
                    yield None
                    continue
            known = self.version
            yield known

    def _take(self, snapshot: Snapshot) -> None:
        self._snapshot, self._received_sec = snapshot, time.monotonic()
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
