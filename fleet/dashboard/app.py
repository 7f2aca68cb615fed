"""The live dashboard: receives snapshots, shows the newest, and says so when the tracker is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from fleet.dashboard.view import render
from fleet.domain.snapshot import Snapshot

_REDRAW_SEC = 1.0
"""Redraw this often even when nothing changes, because the displayed ages grow."""


class SnapshotFeed(Protocol):
    """What the dashboard needs of a client."""

    @property
    def address(self) -> str: ...
    @property
    def is_connected(self) -> bool: ...
    def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[Snapshot, None]: ...


class Dashboard:
    """Keeps what is known right now, and draws it at any time."""

    def __init__(self, source: SnapshotFeed, console: Console) -> None:
        self._source = source
        self._console = console
        self._snapshot: Snapshot | None = None
        self._received_sec = 0.0
        self._away_since_sec: float | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Keep the newest snapshot."""
        self._snapshot = snapshot
        self._received_sec = time.monotonic()

    def draw(self) -> RenderableType:
        """Return the picture of this moment, on the tracker's clock."""
        now_sec = time.monotonic()
        if self._source.is_connected:
            self._away_since_sec = None
        elif self._away_since_sec is None:
            self._away_since_sec = now_sec
        if self._snapshot is None:
            return Text(f"waiting for the tracker at {self._source.address}")
        return render(
            self._snapshot,
            self._snapshot.taken_at_sec + now_sec - self._received_sec,
            address=self._source.address,
            width=self._console.width,
            away_sec=None if self._away_since_sec is None else now_sec - self._away_since_sec,
        )


async def show(source: SnapshotFeed, console: Console, interval_sec: float) -> None:
    """Show the fleet until cancelled."""
    dashboard = Dashboard(source, console)
    with Live(console=console, auto_refresh=False, screen=console.is_terminal, transient=True) as live:
        redrawing = asyncio.create_task(_redraw(dashboard, live), name="fleet dashboard clock")
        try:
            async with aclosing(source.watch(interval_sec)) as snapshots:
                async for snapshot in snapshots:
                    dashboard.take(snapshot)
                    live.update(dashboard.draw(), refresh=True)
        finally:
            redrawing.cancel()
            await asyncio.gather(redrawing, return_exceptions=True)


async def _redraw(dashboard: Dashboard, live: Live) -> None:
    while True:
        live.update(dashboard.draw(), refresh=True)
        await asyncio.sleep(_REDRAW_SEC)
