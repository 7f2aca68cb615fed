"""A snapshot of the fleet as text: what `fleet status --once` prints. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.dashboard.columns import Column
from fleet.dashboard.head import head_line
from fleet.dashboard.panes import DEVICES, JOBS, QUEUE, Pane
from fleet.domain.snapshot import Snapshot

T = TypeVar("T")

_SHOWN_REQUESTS = 15
_SHOWN_JOBS = 8


def render(snapshot: Snapshot, now_sec: float, *, address: str = "", width: int = 100) -> RenderableType:
    """Return the whole fleet, one table below the other.

    Args:
        now_sec: the tracker's clock at this moment.
        address: the tracker's, for the header.
        width: available columns; all that matters fits into 80.
    """
    parts: list[RenderableType] = [head_line(snapshot, now_sec, address, width=width), Text()]
    if snapshot.devices:
        parts.append(_table(DEVICES, DEVICES.order(snapshot.devices), now_sec, width=width))
    else:
        parts.append(Text(DEVICES.empty.format(address=address or "HOST:PORT")))
    if snapshot.requests:
        shown = snapshot.requests[:_SHOWN_REQUESTS]
        parts += [Text(), _table(QUEUE, shown, now_sec, width=width), *_more(snapshot.request_count - len(shown))]
    if snapshot.jobs:
        parts += [Text(), _table(JOBS, snapshot.jobs[:_SHOWN_JOBS], now_sec, width=width)]
    return Group(*parts)


def _table(pane: Pane[T], things: Sequence[T], now_sec: float, *, width: int) -> Table:
    columns = [column for column in pane.columns if width >= column.from_width]
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            style=column.style,
            ratio=1 if column.takes_rest else None,
            overflow="ellipsis",
            no_wrap=True,
        )
    for thing in things:
        table.add_row(*(_literally(column, thing, now_sec) for column in columns))
    return table


def _literally(column: Column[T], thing: T, now_sec: float) -> Text:
    """Take a cell literally: names and reasons come from others, and brackets in them are not markup."""
    cell = column.cell(thing, now_sec)
    return Text(cell) if isinstance(cell, str) else cell


def _more(hidden: int) -> list[Text]:
    return [Text(f"and {hidden} more", style="dim")] if hidden > 0 else []
