"""Renders a snapshot of the fleet as text, for `fleet status --once`. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

from fleet.base.quantities import count_text
from fleet.dashboard.formatting import short_name
from fleet.dashboard.head import head_line
from fleet.dashboard.panes import BOOKINGS, DEVICES, JOBS, QUEUE, Choice, Pane
from fleet.dashboard.sheet import make_sheet
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.snapshot import Snapshot

T = TypeVar("T")

_SHOWN_REQUESTS = 15
_SHOWN_BOOKINGS = 8
_SHOWN_JOBS = 8
_SHOWN_OPTIMIZERS = 8


def render(snapshot: Snapshot, now_sec: float, *, address: str = "", width: int = 100) -> RenderableType:
    """Return the whole fleet, one table below the other.

    Args:
        now_sec: the tracker's clock at this moment.
        address: the tracker's, for the header.
        width: available columns; all that matters fits into 80.
    """
    parts: list[RenderableType] = [head_line(snapshot, now_sec, address, width=width), Text()]
    if snapshot.devices:
        parts += _table(DEVICES, snapshot.devices, now_sec, width=width)
    else:
        parts.append(Text(DEVICES.empty.format(address=address or "HOST:PORT")))
    if snapshot.requests:
        shown = snapshot.requests[:_SHOWN_REQUESTS]
        parts += [Text(), *_table(QUEUE, shown, now_sec, width=width), *_more(snapshot.request_count - len(shown))]
    if snapshot.bookings:
        booked = snapshot.bookings[:_SHOWN_BOOKINGS]
        parts += [Text(), *_table(BOOKINGS, booked, now_sec, width=width)]
        parts += _more(len(snapshot.bookings) - len(booked))
    if snapshot.jobs:
        shown_jobs = snapshot.jobs[:_SHOWN_JOBS]
        parts += [Text(), *_table(JOBS, shown_jobs, now_sec, width=width), *map(_aside, decision_lines(shown_jobs))]
    if optimizers := optimizer_lines(snapshot):
        parts += [] if snapshot.jobs else [Text()]
        parts += map(_aside, optimizers[:_SHOWN_OPTIMIZERS])
        parts += _more(len(optimizers) - _SHOWN_OPTIMIZERS)
    return Group(*parts)


def _table(pane: Pane[T], items: Sequence[T], now_sec: float, *, width: int) -> list[Text]:
    sheet = make_sheet(pane, items, Choice(), now_sec, width=width)
    sheet.header.stylize("dim")
    lines = [sheet.header, *(sheet.line(index) for index in range(len(sheet.names)))]
    return [Text(no_wrap=True, overflow="ellipsis").append_text(line) for line in lines]


def decision_lines(jobs: Sequence[JobStatus]) -> list[str]:
    """Return the next batch of each running job and its reason: "resnet18: conv2d 3x3 on pi4, since ..."."""
    return [
        f"{job.title or short_name(job.name)}: {job.decision}"
        for job in jobs
        if job.state is JobState.RUNNING and job.decision
    ]


def optimizer_lines(snapshot: Snapshot) -> list[str]:
    """Return a line for each optimizer: "lab1:4711 runs 2 jobs with 8 builders", or that it is idle."""
    running = [job for job in snapshot.jobs if job.state is JobState.RUNNING and job.optimizer]
    counts = Counter(job.optimizer for job in running)
    # Optimizers behind an older tracker are known from their jobs alone.
    builders = {job.optimizer: job.builder_count for job in running}
    builders |= {one.name: one.builder_count for one in snapshot.optimizers}
    return [
        (f"{name} runs {count_text(counts[name], 'job')}" if counts[name] else f"{name} is idle")
        + (f" with {count_text(builders[name], 'builder')}" if builders[name] else "")
        for name in sorted(builders)
    ]


def _aside(line: str) -> Text:
    return Text(line, style="dim", no_wrap=True, overflow="ellipsis")


def _more(hidden: int) -> list[Text]:
    return [Text(f"and {hidden} more", style="dim")] if hidden > 0 else []
