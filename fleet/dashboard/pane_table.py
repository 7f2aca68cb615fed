"""One pane on the screen: a fixed header, scrolling lines, and a cursor that follows its row.

It draws the lines that are seen, and only those that changed: with a thousand devices as fast as with ten. Textual's
own DataTable measures every cell again whenever one of them changes, and cannot leave out columns as it gets narrower.
"""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from fleet.dashboard.sheet import Sheet

_HEADER_LINES = 1
_REVERSED = Style(reverse=True)
_UNDERLINED = Style(underline=True)


class PaneTable(ScrollView, can_focus=True):
    """Widget that shows a sheet."""

    DEFAULT_CSS = """
    PaneTable { height: 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; overflow-x: hidden; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home,g", "edge(-1)", show=False),
        Binding("end,G", "edge(1)", show=False),
        Binding("enter", "open", show=False),
        Binding("tab", "app.next_pane(1)", show=False),
        Binding("shift+tab", "app.next_pane(-1)", show=False),
    ]

    class Moved(Message):
        """The cursor is on another row."""

    class Opened(Message):
        """The row under the cursor is to be opened."""

    class SortAsked(Message):
        """A column's title was clicked."""

        def __init__(self, title: str) -> None:
            super().__init__()
            self.title = title

    def __init__(self, pane: str) -> None:
        super().__init__(id=pane)
        self._sheet = Sheet(header=Text())
        self._cursor = 0

    @property
    def selected(self) -> str:
        """Name of the row under the cursor; empty if there is none."""
        names = self._sheet.names
        return names[self._cursor] if self._cursor < len(names) else ""

    @property
    def titles(self) -> list[str]:
        """Titles of the visible columns."""
        return [shape.title for shape in self._sheet.shapes]

    @property
    def row_count(self) -> int:
        return len(self._sheet.names)

    def show(self, sheet: Sheet) -> None:
        """Show another sheet. The cursor and the scroll position follow the selected row."""
        former, name, at = self._sheet, self.selected, self._cursor
        self._sheet = sheet
        if name in sheet.names:
            self._cursor = sheet.names.index(name)
        else:
            self._cursor = max(0, min(at, self.row_count - 1))
        self.virtual_size = Size(0, self.row_count + _HEADER_LINES)
        if self._cursor != at and self._is_seen(at):
            self.scroll_to(y=self.scroll_offset.y + self._cursor - at, animate=False)
        if former.shapes != sheet.shapes or former.header != sheet.header or not sheet.names:
            self.refresh()
        else:
            self._refresh_changed(former)
        if self.selected != name:
            self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        """Return one visible line."""
        if y < _HEADER_LINES:
            return self._header()
        index = self.scroll_offset.y + y - _HEADER_LINES
        if index >= self.row_count:
            return Strip.blank(self.size.width, self.rich_style)
        line = self._sheet.line(index)
        if index == self._cursor and self.has_focus:
            return self._strip(Text(line.plain)).apply_style(_REVERSED)
        return self._strip(line)

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self._go_to(self._cursor + by)

    def action_page(self, direction: int) -> None:
        """Move the cursor by one page."""
        self._go_to(self._cursor + direction * max(1, self._seen_rows() - 1))

    def action_edge(self, direction: int) -> None:
        """Move the cursor to the first or the last row."""
        self._go_to(self.row_count if direction > 0 else 0)

    def action_open(self) -> None:
        """Request the details of the row under the cursor."""
        if self.selected:
            self.post_message(self.Opened())

    def on_focus(self) -> None:
        self.refresh()
        self.post_message(self.Moved())

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        if event.y < _HEADER_LINES:
            title = self._sheet.title_at(event.x)
            if title:
                self.post_message(self.SortAsked(title))
            return
        self._go_to(self.scroll_offset.y + event.y - _HEADER_LINES)
        if event.chain > 1:
            self.action_open()

    def _go_to(self, index: int) -> None:
        before = self._cursor
        self._cursor = max(0, min(index, self.row_count - 1))
        top = self.scroll_offset.y
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif not self._is_seen(self._cursor):
            self.scroll_to(y=self._cursor - self._seen_rows() + 1, animate=False)
        for each in {before, self._cursor}:
            self._refresh_row(each)
        if self._cursor != before:
            self.post_message(self.Moved())

    def _seen_rows(self) -> int:
        return self.size.height - _HEADER_LINES

    def _is_seen(self, index: int) -> bool:
        return 0 <= index - self.scroll_offset.y < self._seen_rows()

    def _refresh_changed(self, former: Sheet) -> None:
        """Redraw the visible rows with changed cells."""
        top = self.scroll_offset.y
        for index in range(top, top + self._seen_rows()):
            if former.cells[index : index + 1] != self._sheet.cells[index : index + 1]:
                self._refresh_row(index)

    def _refresh_row(self, index: int) -> None:
        if self._is_seen(index):
            self.refresh_line(index + _HEADER_LINES)

    def _header(self) -> Strip:
        head = self._sheet.header.copy()
        head.stylize("bold" if self.has_focus else "dim")
        if self._sheet.note:
            head = Text.assemble(head, "  ", (self._sheet.note, "dim"))
        return self._strip(head).apply_style(_UNDERLINED)

    def _strip(self, line: Text) -> Strip:
        segments = line.render(self.app.console)
        return Strip(segments).adjust_cell_length(self.size.width).apply_style(self.rich_style)
