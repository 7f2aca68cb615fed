"""Tables of a page, from the columns of `fleet status`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlencode

from rich.text import Text

from fleet.dashboard.columns import Cell
from fleet.dashboard.panes import Choice, Pane, arrange, parse_filter
from fleet.reports import document

T = TypeVar("T")

_KINDS = {"green": "good", "cyan": "busy", "yellow": "warn", "bold red": "bad"}
"""Classes of the style sheet by the styles of a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Filter and order that a viewer chose in the address of a page."""

    filter: str = ""
    sort: str = ""
    is_turned: bool = False

    def choice(self) -> Choice:
        """Return filter and order for a pane.

        Raises:
            InvalidRequest: the filter is no selector.
        """
        return Choice(selector=parse_filter(self.filter), sort_by=self.sort, is_turned=self.is_turned)

    def sorted_by(self, title: str) -> str:
        """Return the query of a page sorted by a column, the other way round if it is already."""
        is_turned = self.sort == title and not self.is_turned
        found = {"filter": self.filter, "sort": title, "turned": "1" if is_turned else ""}
        return "?" + urlencode({key: value for key, value in found.items() if value})


@dataclass(frozen=True, slots=True)
class Heading:
    """Head of a column."""

    title: str
    is_number: bool = False
    href: str = ""
    """Address that sorts by it."""
    order: str = "none"
    """Its order as aria-sort."""


@dataclass(frozen=True, slots=True)
class Datum:
    """Content of a cell."""

    text: str
    kind: str = ""
    """Class of the style sheet."""
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A table."""

    title: str
    headings: Sequence[Heading]
    rows: Sequence[Sequence[Datum]]
    more: int = 0
    """Number of rows that are not shown."""
    empty: str = ""


def grid_of(
    pane: Pane[T], items: Sequence[T], view: View, now_sec: float, href: Callable[[T], str], *, total: int = 0
) -> Grid:
    """Return the table of a pane.

    Args:
        href: address of a row's page.
        total: number of all rows, larger than that of `items` if they are only the first.

    Raises:
        InvalidRequest: the filter is no selector.
    """
    headings = [
        Heading(
            column.title, column.is_number, view.sorted_by(column.title), _order(view, column.title, column.is_number)
        )
        for column in pane.columns
    ]
    shown = arrange(pane, items, view.choice())
    rows = [_row([column.cell(item, now_sec) for column in pane.columns], href(item)) for item in shown]
    empty = f"none of {len(items)} matches {view.filter}" if items else pane.empty.format(address="HOST:PORT")
    return Grid(title=pane.title, headings=headings, rows=rows, more=max(0, total - len(items)), empty=empty)


def grid_of_table(table: document.Table, title: str) -> Grid:
    """Return a table of a report."""
    headings = [Heading(name, at > 0 and name not in table.words) for at, name in enumerate(table.header)]
    return Grid(title=title, headings=headings, rows=[list(map(Datum, row)) for row in table.rows])


def datum(cell: Cell, href: str = "") -> Datum:
    """Return the content of a cell, with the class of its style if it is a word: bars have none."""
    if isinstance(cell, str) or not any(map(str.isalpha, cell.plain)):
        return Datum(str(cell), "", href)
    styles = [str(cell.style), *(str(span.style) for span in cell.spans)]
    return Datum(cell.plain, next((_KINDS[style] for style in reversed(styles) if style in _KINDS), ""), href)


def _row(cells: Sequence[str | Text], href: str) -> list[Datum]:
    return [datum(cells[0], href), *map(datum, cells[1:])]


def _order(view: View, title: str, is_number: bool) -> str:
    if view.sort != title:
        return "none"
    return "descending" if is_number is not view.is_turned else "ascending"
