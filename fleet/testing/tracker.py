"""A real tracker in the test's own process."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fleet.base.clock import Clock
from fleet.testing.identity import use_authority
from fleet.tracker.core.records import TrackerLimits
from fleet.tracker.lease_service import MAX_UNSENT
from fleet.tracker.observers import Observer
from fleet.tracker.options import TrackerOptions
from fleet.tracker.server import Tracker


class ServedTracker:
    """A tracker that can be stopped and started again on the same port and journal."""

    def __init__(self, options: TrackerOptions, make: Callable[[TrackerOptions], Tracker]) -> None:
        self._options = options
        self._make = make
        self.tracker = make(options)

    @property
    def address(self) -> str:
        """ "host:port"; the same after a restart."""
        return self.tracker.address

    async def start(self) -> None:
        """Listen."""
        port = int(self.tracker.address.rpartition(":")[2] or self._options.port)
        self.tracker = self._make(replace(self._options, port=port))
        await self.tracker.open()

    async def stop(self) -> None:
        """Stop abruptly, as a dying process does. Idempotent."""
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
    metrics: str | None = None,
) -> AsyncIterator[ServedTracker]:
    """Serve a tracker on a free port of the loopback. Its journal is removed at the end unless `state_dir` is given."""
    with tempfile.TemporaryDirectory(prefix="fleet-tracker-", ignore_cleanup_errors=True) as temporary:
        directory = state_dir or Path(temporary)
        use_authority(directory)
        make = functools.partial(
            Tracker,
            clock=clock,
            limits=limits or TrackerLimits(max_names_per_agent=20_000),  # simulated agents in one process share a key
            max_unsent=max_unsent,
            observers=tuple(observers),
        )
        options = TrackerOptions(port=0, state_dir=directory, is_discoverable=False, is_plain=is_plain, metrics=metrics)
        served = ServedTracker(options, make)
        await served.start()
        try:
            yield served
        finally:
            await served.stop()
