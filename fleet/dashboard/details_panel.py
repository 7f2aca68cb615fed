"""Panel with the details of the selected row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from fleet.dashboard.chart import render_history
from fleet.dashboard.explanation import render_explanation
from fleet.dashboard.selection import Selected, details_of
from fleet.dashboard.sources import JobSource, SnapshotSource
from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceStatus
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.errors import FleetError

_LOAD_EACH_SEC = 5.0
"""Interval of requests for facts that snapshots lack."""

_WIDE = 100
"""From this width [columns] on, a device's history is beside its other details."""

_Drawing = Callable[[float, int], RenderableType]
"""Rendering of a row's details at a time, for a number of columns."""


class DetailsPanel(VerticalScroll, can_focus=True):
    """Shows a snapshot's facts about the selected row, and below them those of other calls."""

    DEFAULT_CSS = """
    DetailsPanel { border-top: solid ansi_default; scrollbar-size-vertical: 1; }
    DetailsPanel:focus { border-top: heavy ansi_default; }
    DetailsPanel > Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.next_pane(1)", show=False),
        Binding("shift+tab", "app.next_pane(-1)", show=False),
    ]

    class Loaded(Message):
        """More facts have been loaded."""

    def __init__(self, source: SnapshotSource, jobs: JobSource) -> None:
        super().__init__(id="details")
        self._source = source
        self._jobs = jobs
        self._item: Selected | None = None
        self._loaded: _Drawing | None = None

    def compose(self) -> ComposeResult:
        yield Static()

    def on_mount(self) -> None:
        self.set_interval(_LOAD_EACH_SEC, self.load)

    def show(self, item: Selected | None, snapshot: Snapshot, now_sec: float) -> None:
        """Show the current details of a row; None: no row is selected."""
        is_other = _name(item) != _name(self._item)
        self._item = item
        if is_other:
            self._loaded = None
            self.scroll_home(animate=False)
            self.load()
        known = details_of(item, snapshot, now_sec) if item is not None else Text("nothing is selected", "dim")
        self.query_one(Static).update(self._with_loaded(known, now_sec))

    def close(self) -> None:
        """Clear the panel, and stop loading."""
        self._item, self._loaded = None, None

    def load(self) -> None:
        """Request the facts that snapshots lack."""
        if self._item is not None:
            self.run_worker(self._load(self._item), exclusive=True, name="fleet details")

    async def _load(self, item: Selected) -> None:
        try:
            if isinstance(item, DeviceStatus):
                samples = await self._source.history(item.name)
                self._loaded = lambda now_sec, width: render_history(samples, now_sec, width=width)
            elif isinstance(item, PendingRequest):
                found = await self._source.explain_request(item.request_id)
                self._loaded = lambda _, __: render_explanation(found, has_request=False)
            elif isinstance(item, JobStatus):
                view = await asyncio.to_thread(self._jobs.look, item.name, self._width)
                self._loaded = lambda _, __: view
        except FleetError as error:
            text = Text(str(error), "dim")
            self._loaded = lambda _, __: text
        self.post_message(self.Loaded())

    @property
    def _width(self) -> int:
        """Maximum columns of a line."""
        return max(1, self.app.size.width - self.styles.scrollbar_size_vertical)

    def _with_loaded(self, known: RenderableType, now_sec: float) -> RenderableType:
        if self._loaded is None:
            return known
        if self._width < _WIDE or not isinstance(self._item, DeviceStatus):
            return Group(known, Text(), self._loaded(now_sec, self._width))
        half = self._width // 2
        both = Table.grid(padding=(0, 2, 0, 0))
        both.add_column(width=self._width - half - 2)
        both.add_column(width=half)
        both.add_row(known, self._loaded(now_sec, half))
        return both


def _name(item: Selected | None) -> str:
    if item is None:
        return ""
    if isinstance(item, DeviceStatus | Booking):
        return item.name
    return f"{item.holder} {item.name if isinstance(item, JobStatus) else item.request_id}"
