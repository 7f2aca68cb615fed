"""Renders rows of a pane as lines of a given width. Pure; lines are rendered lazily, as few are visible."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rich.cells import cell_len
from rich.text import Text

from fleet.dashboard.columns import Cell, Column
from fleet.dashboard.panes import Choice, Pane, arrange

T = TypeVar("T")

GAP = 2
"""Columns of the terminal between two columns of a table."""

_LEAST_WIDTH = 6
"""Minimum width of a shortened column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Position of a column in every line."""

    title: str
    width: int
    is_right: bool
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """Table of a pane, ready to be rendered."""

    header: Text
    shapes: tuple[Shape, ...] = ()
    names: tuple[str, ...] = ()
    """Names of the rows, from top to bottom."""

    cells: tuple[tuple[Cell, ...], ...] = ()
    note: str = ""
    """Placeholder for an empty table."""

    def line(self, index: int) -> Text:
        """Return one row."""
        return _join(
            _fit(cell, shape, is_last=shape is self.shapes[-1])
            for cell, shape in zip(self.cells[index], self.shapes, strict=True)
        )

    def title_at(self, x: int) -> str:
        """Return the title of the column at a position; empty if there is none."""
        for shape in self.shapes:
            if 0 <= x < shape.width:
                return shape.title
            x -= shape.width + GAP
        return ""


def make_sheet(
    pane: Pane[T], items: Sequence[T], choice: Choice, now_sec: float, *, width: int, total: int = 0, address: str = ""
) -> Sheet:
    """Return the table of a pane.

    Args:
        width: of the pane [columns of the terminal].
        total: the number shown in the header, larger than that of `items` if they are only the first; 0 for none.
        address: the tracker's, for advice.
    """
    rows = arrange(pane, items, choice)
    columns = [column for column in pane.columns if width >= column.from_width]
    count = str(total) if len(rows) == len(items) else f"{len(rows)}/{total}"
    titles = [_title(column, choice) for column in columns]
    titles[0] = f"{titles[0]} {count}" if total else titles[0]
    cells = tuple(tuple(column.cell(row, now_sec) for column in columns) for row in rows)
    widths = _widths([*cells, tuple(titles)], columns, width)
    shapes = tuple(
        Shape(title=column.title, width=each, is_right=column.is_number, style=column.style)
        for column, each in zip(columns, widths, strict=True)
    )
    if rows:
        heads = (_fit(Text(title), shape, is_last=False) for title, shape in zip(titles, shapes, strict=True))
        names = tuple(map(pane.name, rows))
        return Sheet(header=_join(heads), shapes=shapes, names=names, cells=cells)
    note = f"none of {total} matches {choice.selector}" if total else pane.empty.format(address=address)
    return Sheet(header=Text(titles[0]), note=note)


def _title(column: Column[T], choice: Choice) -> str:
    if column.title != choice.sort_by:
        return column.title
    return f"{column.title} {'↓' if column.is_number is not choice.is_turned else '↑'}"


def _widths(rows: Sequence[Sequence[Cell]], columns: Sequence[Column[T]], width: int) -> list[int]:
    """Return the width of each column: that of its cells, or less if not all fit. Numbers are never truncated."""
    needed = [max(map(_cell_width, cells)) for cells in zip(*rows, strict=True)]
    rest = next((index for index, column in enumerate(columns) if column.takes_rest), None)
    available = width - GAP * (len(columns) - 1)
    if rest is not None:
        others = sum(needed) - needed[rest]
        needed[rest] = max(_LEAST_WIDTH, available - others)
    while sum(needed) > available:
        may_shrink = [index for index, column in enumerate(columns) if not column.is_number]
        widest = max(may_shrink, key=lambda index: needed[index])
        if needed[widest] <= _LEAST_WIDTH:
            break
        needed[widest] -= 1
    return needed


def _cell_width(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def _fit(cell: Cell, shape: Shape, *, is_last: bool) -> Text:
    """Return a cell padded or truncated to the width of its column."""
    text = cell.copy() if isinstance(cell, Text) else Text(cell, shape.style)
    text.truncate(shape.width, overflow="ellipsis")
    missing = shape.width - text.cell_len
    if missing > 0 and shape.is_right:
        text.pad_left(missing)
    elif missing > 0 and not is_last:
        text.pad_right(missing)
    return text


def _join(texts: Iterable[Text]) -> Text:
    return Text(" " * GAP).join(texts)
