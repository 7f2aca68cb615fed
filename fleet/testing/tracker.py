"""A real tracker in the test's own process."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleet.base.clock import Clock
from fleet.testing.identity import use_authority
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.lease_service import MAX_UNSENT
from fleet.tracker.observers import Observer
from fleet.tracker.server import Tracker, TrackerConfig


class ServedTracker:
    """A tracker that can be stopped and started again on the same port and journal."""

    def __init__(self, settings: TrackerConfig, clock: Clock | None, observers: Iterable[Observer] = ()) -> None:
        self._settings = settings
        self._clock = clock
        self._observers = tuple(observers)
        self.tracker = Tracker(settings, clock, observers=self._observers)

    @property
    def address(self) -> str:
        """ "host:port"; the same after a restart."""
        return self.tracker.address

    async def start(self) -> None:
        """Listen."""
        port = int(self.tracker.address.rpartition(":")[2] or self._settings.port)
        self.tracker = Tracker(replace(self._settings, port=port), self._clock, observers=self._observers)
        await self.tracker.open()

    async def stop(self) -> None:
        """Stop as a process that ends does. Idempotent."""
        await self.tracker.close()

    async def restart(self) -> None:
        """Stop and start again."""
        await self.stop()
        await self.start()


@asynccontextmanager
async def serve_tracker(
    *,
    limits: TrackerLimits | None = None,
    clock: Clock | None = None,
    state_dir: Path | None = None,
    max_unsent: int = MAX_UNSENT,
    is_plain: bool = False,
    observers: Iterable[Observer] = (),
) -> AsyncIterator[ServedTracker]:
    """Serve a tracker on a free port of the loopback. Its journal is removed at the end unless `state_dir` is given."""
    with tempfile.TemporaryDirectory(prefix="fleet-tracker-", ignore_cleanup_errors=True) as temporary:
        settings = TrackerConfig(
            port=0,
            state_dir=state_dir or Path(temporary),
            is_discoverable=False,
            limits=limits or TrackerLimits(max_names_per_agent=20_000),  # simulated agents in one process share a key
            max_unsent=max_unsent,
            is_plain=is_plain,
        )
        use_authority(settings.state_dir)
        served = ServedTracker(settings, clock, observers)
        await served.start()
        try:
            yield served
        finally:
            await served.stop()
