"""`fleet status` on a terminal: devices, queue, bookings and jobs as panes, details of the selected row, and actions.

Pure functions decide the content (`selection`, `panes`, `sheet`, `heights`, `head`); this receives snapshots and
keys, and puts lines on the screen.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.filter import LineFilter
from textual.widgets import Input, Static

from fleet.base.logs import held_back
from fleet.dashboard import heights
from fleet.dashboard.actions import Action, CancelBooking, CancelRequest, Revoke
from fleet.dashboard.details_panel import DetailsPanel
from fleet.dashboard.dialogs import Confirm, Help
from fleet.dashboard.head import away_line, head_line, keys_line
from fleet.dashboard.keys import ALL_KEYS, FILTER_HINTS, hints
from fleet.dashboard.pane_table import PaneTable
from fleet.dashboard.panes import BOOKINGS, Choice, parse_filter
from fleet.dashboard.plain_signs import PlainSigns
from fleet.dashboard.selection import PANES, action_for, find, make_sheets, shown_panes
from fleet.dashboard.sources import JobSource, SnapshotSource
from fleet.dashboard.terminal_input import TolerantDriver
from fleet.domain.bookings import Booking, notice_text
from fleet.domain.selectors import ANY
from fleet.domain.snapshot import Snapshot
from fleet.errors import FleetError, InvalidRequest

_TICK_SEC = 1.0
"""The screen is drawn this often even when nothing changes, because the displayed ages grow."""

_MESSAGE_SEC = 10.0
_MOST_MESSAGE_LINES = 3
_MOST_BOOKING_LINES = 6


async def show(source: SnapshotSource, jobs: JobSource, interval_sec: float) -> int:
    """Show the fleet until the user quits. Return the exit code.

    Raises:
        FleetError: the tracker does not show it to us any more.
    """
    app = FleetApp(source, jobs, interval_sec)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, app.end_by, number)
    with held_back():
        await app.run_async()
    if app.failure is not None:
        raise app.failure
    return app.return_code or 0


class FleetApp(App[None]):
    """Application that shows a fleet."""

    CSS = """
    #head, #keys { height: 1; }
    #panes { height: 1fr; }
    #message { height: auto; max-height: 3; }
    #filtering { height: 1; }
    #filtering > Static { width: auto; }
    #filter, #filter:focus { height: 1; width: 1fr; border: none; padding: 0; background: ansi_default; }
    #message, #filtering, #details { display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("s", "sort", show=False),
        Binding("S", "turn", show=False),
        Binding("x", "act", show=False),
        Binding("z", "zoom", show=False),
        Binding("escape", "leave", show=False),
        Binding("question_mark", "help", show=False),
    ]

    def __init__(self, source: SnapshotSource, jobs: JobSource, interval_sec: float = 1.0) -> None:
        """Store the sources. `on_mount` starts the display.

        Args:
            interval_sec: least time between two snapshots.
        """
        super().__init__(driver_class=TolerantDriver, ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.failure: FleetError | None = None
        self._source = source
        self._jobs = jobs
        self._interval_sec = interval_sec
        self._snapshot: Snapshot | None = None
        self._received_sec = 0.0
        self._away_since_sec: float | None = None
        self._away_since = ""
        self._choices = dict.fromkeys(PANES, Choice())
        self._pane = PANES[0]
        self._is_zoomed = False
        self._is_detailed = False
        self._said = Text()
        self._message_until_sec = 0.0
        self._signs = PlainSigns(sys.__stderr__.encoding if sys.__stderr__ is not None else "utf-8")

    @property
    def choice(self) -> Choice:
        """Filter and order of the pane in use."""
        return self._choices[self._pane]

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return the filters of every line: the terminal's encoding may lack characters."""
        found = super().get_line_filters()
        return [*found, self._signs] if self._signs.enabled else found

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Vertical(id="panes"):
            for pane in PANES:
                yield PaneTable(pane)
            yield DetailsPanel(self._source, self._jobs)
        yield Static(id="message")
        with Horizontal(id="filtering"):
            yield Static("filter: ")
            yield Input(id="filter", compact=True, placeholder="cpu, or state=free,rack=3")
        yield Static(id="keys")

    def on_mount(self) -> None:
        self.screen.set_focus(self._table)
        self.run_worker(self._follow(), name="fleet snapshots")
        self._source.watch_bookings(self._note_booking)
        self.set_interval(_TICK_SEC, self.draw)
        self.draw()

    async def _follow(self) -> None:
        """Display every snapshot that arrives."""
        try:
            async with aclosing(self._source.watch(self._interval_sec)) as snapshots:
                async for snapshot in snapshots:
                    self._snapshot, self._received_sec = snapshot, time.monotonic()
                    self.draw()
        except FleetError as error:
            self.failure = error
            self.exit(return_code=error.exit_code)

    # Content of the screen

    def draw(self) -> None:
        """Draw the current state."""
        if not self.is_running:  # a snapshot arrived while the screen is closing
            return
        width = self.size.width
        if time.monotonic() > self._message_until_sec:
            self._message.display = False
        self._line("head").update(self._head(width))
        if self._snapshot is not None:
            now_sec = self._now_sec
            address = self._source.address
            sheets = make_sheets(self._snapshot, self._choices, now_sec, width=width - 1, address=address)
            for pane, sheet in sheets.items():
                self._table_of(pane).show(sheet)
            if self._is_detailed:
                item = find(self._snapshot, self._pane, self._table.selected)
                self._details.show(item, self._snapshot, now_sec)
        keys = FILTER_HINTS if self._filtering.display else hints(self._chosen_action(), is_open=self._is_open)
        self._line("keys").update(keys_line(keys, width=width))
        self._lay_out()

    def _lay_out(self) -> None:
        """Divide the screen's lines among its parts."""
        available = self.size.height - 2 - self._message_lines() - self._filtering.display
        panes = shown_panes(self._snapshot)
        if self._pane not in panes:  # the last booking has ended
            self._pane, self._is_detailed, self._is_zoomed = PANES[0], False, False
            self._details.close()
        counts = [self._row_count(pane) for pane in panes]
        zoomed = panes.index(self._pane) if self._is_zoomed else None
        lines, details_lines = heights.lay_out(available, counts, zoomed=zoomed, is_detailed=self._is_detailed)
        lines_of = dict(zip(panes, lines, strict=True))
        for pane in PANES:
            table, given = self._table_of(pane), lines_of.get(pane, 0)
            table.display = given > 0
            table.styles.height = given
        self._details.display = self._is_detailed
        self._details.styles.height = details_lines
        if self.screen is self.default_screen and self.focused is None:  # the focused pane is hidden now
            self.screen.set_focus(self._table if self._table.display else self._details)

    def _row_count(self, pane: str) -> int:
        """Return the number of rows of a pane that want a line; that of bookings is short unless zoomed."""
        count = self._table_of(pane).row_count
        return min(count, _MOST_BOOKING_LINES) if pane == BOOKINGS.title and not self._is_zoomed else count

    def _message_lines(self) -> int:
        if not self._message.display:
            return 0
        return min(_MOST_MESSAGE_LINES, len(self._said.wrap(self.console, self.size.width)))

    def _head(self, width: int) -> Text:
        self._note_absence()
        address = self._source.address
        if self._snapshot is None:
            return Text(f"waiting for the tracker at {address}")
        if self._away_since_sec is not None:
            return away_line(address, self._away_since, time.monotonic() - self._away_since_sec)
        return head_line(self._snapshot, self._now_sec, address, width=width)

    def _note_absence(self) -> None:
        if self._source.is_connected:
            self._away_since_sec = None
        elif self._away_since_sec is None:
            self._away_since_sec, self._away_since = time.monotonic(), time.strftime("%H:%M:%S")

    def say(self, text: str, *, is_bad: bool = False) -> None:
        """Show a message for some seconds."""
        if not self.is_running:
            return
        self._message_until_sec = time.monotonic() + _MESSAGE_SEC
        self._said = Text(text, "bold red" if is_bad else "bold")
        self._message.update(self._said)
        self._message.display = True
        self._lay_out()

    def _note_booking(self, booking: Booking) -> None:
        if self.screen_stack:  # the client may outlive the application
            self.say(notice_text(booking, time.time()), is_bad=booking.missing_count > 0)

    # Actions of keys

    def end_by(self, number: signal.Signals) -> None:
        """Exit on a signal with a shell's exit code, and restore the terminal."""
        self.exit(return_code=128 + number)

    def action_interrupt(self) -> None:
        """Quit on Ctrl-C, which arrives as a key."""
        self.end_by(signal.SIGINT)

    def action_next_pane(self, by: int) -> None:
        """Focus the next pane, or the details."""
        stops = [widget for widget in (*map(self._table_of, PANES), self._details) if widget.display]
        at = stops.index(self.focused) if self.focused in stops else -1
        if stops:  # a terminal of two lines has none
            self.screen.set_focus(stops[(at + by) % len(stops)])

    def action_filter(self) -> None:
        """Open the line for a filter."""
        self._filter.value = "" if self.choice.selector == ANY else str(self.choice.selector)
        self._filtering.display = True
        self.screen.set_focus(self._filter)
        self._lay_out()

    def action_sort(self) -> None:
        """Sort by the next column; after the last one, in the pane's own order."""
        titles = ["", *self._table.titles]
        at = titles.index(self.choice.sort_by) if self.choice.sort_by in titles else 0
        self._choose(replace(self.choice, sort_by=titles[(at + 1) % len(titles)], is_turned=False))

    def action_turn(self) -> None:
        """Reverse the order."""
        self._choose(replace(self.choice, is_turned=not self.choice.is_turned))

    def action_zoom(self) -> None:
        """Toggle full size for this pane."""
        self._is_zoomed = not self._is_zoomed
        self.draw()

    def action_leave(self) -> None:
        """Close the part opened last: the filter's line, the details, the zoom, the filter."""
        if self._filtering.display:
            self._close_filter()
        elif self._is_detailed:
            self._is_detailed = False
            self._details.close()
            self._table.display = True
            self.screen.set_focus(self._table)
        elif self._is_zoomed:
            self._is_zoomed = False
        else:
            self._choices[self._pane] = Choice()
        self.draw()

    def action_help(self) -> None:
        """Show all keys."""
        self.push_screen(Help(ALL_KEYS))

    def action_act(self) -> None:
        """Ask for confirmation of the action on the selected row, and perform it."""
        action = self._chosen_action()
        if action is None:
            self.say("nothing can be done about this from here")
            return

        def answered(is_wanted: bool | None) -> None:
            if is_wanted:
                self.run_worker(self._do(action), name="fleet action")

        self.push_screen(Confirm(action.question), answered)

    async def _do(self, action: Action) -> None:
        reason = f"{self._source.holder}, in fleet status"
        try:
            if isinstance(action, Revoke):
                lease = await self._source.revoke(action.lease_name, reason)
                self.say(f"revoked {lease.name}: {lease.device_name} is no longer held by {lease.held_by}")
            elif isinstance(action, CancelRequest):
                request = await self._source.cancel_request(action.request_id, reason)
                self.say(f"{request.asked_by} waits no more for {request.terms.wanted}")
            elif isinstance(action, CancelBooking):
                booking = await self._source.cancel_booking(action.booking_name)
                self.say(f"cancelled {booking.name} of {booking.booked_by}")
            else:
                self.say(await asyncio.to_thread(self._jobs.cancel, action.job_name))
        except FleetError as error:
            self.say(str(error), is_bad=True)

    # Messages of widgets

    def on_pane_table_moved(self, event: PaneTable.Moved) -> None:
        if not self.screen_stack:  # a message that was under way when the application ended
            return
        if isinstance(self.focused, PaneTable) and self.focused.id:
            self._pane = self.focused.id
        self.draw()

    def on_pane_table_opened(self) -> None:
        self._is_detailed = True
        self.draw()
        if not self._table.display:
            self.screen.set_focus(self._details)

    def on_pane_table_sort_asked(self, event: PaneTable.SortAsked) -> None:
        is_same = event.title == self.choice.sort_by
        self._choose(replace(self.choice, sort_by=event.title, is_turned=is_same and not self.choice.is_turned))

    def on_details_panel_loaded(self) -> None:
        self.draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types; an incomplete selector changes nothing and shows the error."""
        if not self._filtering.display:
            return
        try:
            selector = parse_filter(event.value)
        except InvalidRequest as error:
            self.say(str(error), is_bad=True)
            return
        self._message_until_sec = 0.0
        self._choose(replace(self.choice, selector=selector))

    def on_input_submitted(self) -> None:
        self._close_filter()
        self.draw()

    def on_resize(self) -> None:
        self.draw()

    def _close_filter(self) -> None:
        self._filtering.display = False
        self.screen.set_focus(self._table)

    def _choose(self, choice: Choice) -> None:
        self._choices[self._pane] = choice
        self.draw()

    # Parts

    def _chosen_action(self) -> Action | None:
        if self._snapshot is None:
            return None
        return action_for(find(self._snapshot, self._pane, self._table.selected))

    @property
    def _is_open(self) -> bool:
        return self._is_detailed or self._is_zoomed or self.choice != Choice()

    @property
    def _now_sec(self) -> float:
        """Current time on the tracker's clock."""
        taken_at_sec = self._snapshot.taken_at_sec if self._snapshot is not None else 0.0
        return taken_at_sec + time.monotonic() - self._received_sec

    def _table_of(self, pane: str) -> PaneTable:
        return self.query_one(f"#{pane}", PaneTable)

    @property
    def _table(self) -> PaneTable:
        return self._table_of(self._pane)

    @property
    def _details(self) -> DetailsPanel:
        return self.query_one(DetailsPanel)

    @property
    def _filter(self) -> Input:
        return self.query_one("#filter", Input)

    @property
    def _filtering(self) -> Horizontal:
        """Input line of the filter."""
        return self.query_one("#filtering", Horizontal)

    @property
    def _message(self) -> Static:
        return self._line("message")

    def _line(self, name: str) -> Static:
        return self.query_one(f"#{name}", Static)
