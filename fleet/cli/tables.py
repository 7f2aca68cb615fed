"""Tables of workloads and of the library's facts about them. A row is one line, even on 80 columns."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import time_text
from fleet.cli.terminal import CleanConsole

WideOption = Annotated[bool, typer.Option("--wide", help="Show all columns, TVM's names of the workloads included.")]

ROOMY_COLUMNS = 100
"""From this width [columns] on, tables show more than the primary columns."""

WIDE_COLUMNS = 200
"""From this width [columns] on, they show everything; with --wide, a narrower terminal wraps the lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRow:
    """Results of a tuning run for one workload."""

    operator: str
    name: str
    weight: float
    trials: int
    trials_before: int = 0
    untuned_sec: float | None
    best_sec: float | None
    gflops: float | None
    errors: Mapping[str, int]


_PIPED_COLUMNS = 1_000
"""Wider than any table, for output without a terminal: other programs read it untruncated."""


def make_console(*, is_wide: bool) -> Console:
    """Return the terminal; for wide tables, one that does not wrap. Without a terminal, $COLUMNS applies if set.

    Words in brackets are words: names of devices, inputs and files come from others.
    """
    console = CleanConsole(highlight=False, markup=False)
    if not console.is_terminal and not os.environ.get("COLUMNS"):
        return CleanConsole(highlight=False, markup=False, width=_PIPED_COLUMNS)
    return CleanConsole(highlight=False, markup=False, width=max(console.width, WIDE_COLUMNS)) if is_wide else console


def make_table(*columns: str, left: frozenset[str] = frozenset()) -> Table:
    """Return an empty table. Columns are numbers, except those in `left`, whose cells are `line`s."""
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for name in columns:
        # If space is short, Rich first shrinks columns that may wrap, so that numbers stay whole.
        table.add_column(line(name), justify="left" if name in left else "right", no_wrap=name not in left)
    return table


def text_table(*columns: str, whole: Collection[str] = ()) -> Table:
    """Return an empty table of texts, which wrap if space is short, but in the columns `whole`."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    return table


def facts_table(rows: Iterable[tuple[str, str]], *, title: str) -> Table:
    """Return a table with a row for each fact that has a text."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        if text:
            table.add_row(name, text)
    return table


def line(text: str) -> Text:
    """Return text that is truncated, not wrapped, if space is short."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def workload_table(rows: Sequence[WorkloadRow], width: int) -> Table:
    """Return one row for each workload, with the columns that fit the terminal's width."""
    has_room, is_wide = width >= ROOMY_COLUMNS, width >= WIDE_COLUMNS
    shows_failed = any(row.errors for row in rows)
    shows_earlier = any(row.trials_before for row in rows)
    columns = ["workload", "weight", "trials", *(["earlier"] if shows_earlier else []), "untuned", "best", "speed-up"]
    columns += ["failed"] if shows_failed else []
    columns += ["GFLOP/s"] if has_room else []
    columns += ["TVM's name"] if is_wide else []
    table = make_table(*columns, left=frozenset({"workload", "TVM's name"}))
    for row in rows:
        table.add_row(
            line(row.operator),
            f"{row.weight:g}",
            str(row.trials),
            *([str(row.trials_before or "")] if shows_earlier else []),
            time_text(row.untuned_sec),
            time_text(row.best_sec),
            speed_up(row.untuned_sec, row.best_sec) or "-",
            *([str(sum(row.errors.values()) or "")] if shows_failed else []),
            *([rate(row.gflops) or "-"] if has_room else []),
            *([line(row.name)] if is_wide else []),
        )
    return table


def failure_notes(rows: Sequence[WorkloadRow]) -> list[str]:
    """List failures with their number, a line for each workload."""
    return [
        f"{row.operator}: {', '.join(f'{count} {kind}' for kind, count in row.errors.items())}"
        for row in rows
        if row.errors
    ]


def speed_up(untuned_sec: float | None, best_sec: float | None) -> str:
    """Return "8.0x", or empty text if one of the times is missing."""
    return f"{untuned_sec / best_sec:.1f}x" if untuned_sec and best_sec else ""


def gflops(flop: float, sec: float | None) -> float | None:
    """Return billions of operations per second."""
    return flop / sec / 1e9 if flop and sec else None


def rate(value: float | None) -> str:
    """Return operations per second as text; empty when they are not known."""
    return f"{value:.1f}" if value else ""


def utc_text(at_sec: float) -> str:
    """Return a moment in UTC, to the second."""
    return datetime.fromtimestamp(at_sec, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def clock_time(at: datetime) -> str:
    """Return a moment in this machine's locale and time zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M")
