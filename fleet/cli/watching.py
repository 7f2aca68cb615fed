"""Follows a job that an optimizer runs, from the library alone."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner

from fleet.base.machine import account_name
from fleet.base.plain import from_plain
from fleet.cli.stored import naming
from fleet.cli.terminal import CleanConsole
from fleet.cli.tune_view import render_progress
from fleet.domain.jobs import trials_text
from fleet.errors import FleetError, InvalidRequest
from fleet.identity.account_key import account_key_id
from fleet.jobs.fleets import destination_of
from fleet.jobs.options import TuneOptions
from fleet.jobs.report import ProgressReport, TuneReport
from fleet.library import Job, JobState, Library
from fleet.optimizer.submit import submit

_LOOK_SEC = 0.5
_LINE_SEC = 5.0
_ENDED = (JobState.FINISHED, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED)


def submit_and_watch(options: TuneOptions) -> list[TuneReport]:
    """Submit a job, watch it, and return its reports, one per kind of board. Ctrl-C leaves the job to its optimizer.

    Raises:
        NoMatchingDevice: the fleet has no device for it; nothing was submitted.
        FleetError: it failed, or was cancelled.
    """
    with Library.open(options.library) as library:
        destination = asyncio.run(destination_of(options.tracker, options.selectors))
        job = submit(library, options, holder=account_name(), owner=account_key_id(), destination=destination)
        return watch(library, job.name)


def watch(library: Library, name: str) -> list[TuneReport]:
    """Show a job on stderr until it ends; return its reports.

    Raises:
        NotFound: no such job.
        FleetError: it failed, or was cancelled or interrupted.
    """
    console = CleanConsole(stderr=True, markup=False, highlight=False)
    try:
        job = _watch_live(library, name, console) if console.is_terminal else _watch_lines(library, name, console)
    except KeyboardInterrupt:
        there = f"{name}{naming(library.url)}"
        seen = f"{name} goes on; see it with: fleet jobs watch {there}; stop it with: fleet jobs cancel {there}"
        console.print(seen, soft_wrap=True)
        raise
    if job.state is not JobState.FINISHED:
        raise FleetError(f"{name} is {job.state.value.lower()}: {job.message}")
    return reports_of(job)


def reports_of(job: Job) -> list[TuneReport]:
    """Return a finished job's report."""
    found = (job.report or {}).get("reports")
    return [from_plain(TuneReport, report) for report in found] if isinstance(found, list) else []


def progress_of(job: Job) -> list[ProgressReport]:
    """Return a job's progress, for each kind of board."""
    found = (job.progress or {}).get("kinds")
    return [from_plain(ProgressReport, kind) for kind in found] if isinstance(found, list) else []


def readable_progress(job: Job) -> list[ProgressReport]:
    """Return the progress of one of many jobs; none if another account or version wrote something else."""
    try:
        return progress_of(job)
    except InvalidRequest:
        return []


def _watch_live(library: Library, name: str, console: Console) -> Job:
    spinners: dict[str, Spinner] = {}
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for job in _looks(library, name):
            kinds = progress_of(job)
            views = [
                render_progress(kind, spinners.setdefault(kind.selector, Spinner("dots")), width=console.width)
                for kind in kinds
            ]
            live.update(Group(*views) if views else f"{name} is {job.state.value.lower()}", refresh=True)
    return job


def _watch_lines(library: Library, name: str, console: Console) -> Job:
    shown: set[str] = set()
    last: list[str] = []
    printed_at = -math.inf
    for job in _looks(library, name):
        kinds = progress_of(job)
        lines = [
            f"{kind.selector}: {kind.activity} ({trials_text(kind.trials_done, kind.trials_total)} trials)"
            for kind in kinds
            if kind.activity
        ] or [f"{name} is {job.state.value.lower()}"]
        new = [text for kind in kinds for text in kind.notices if text not in shown]
        if lines != last and time.monotonic() - printed_at >= _LINE_SEC:
            new += [line for line in lines if line not in last]
            last, printed_at = lines, time.monotonic()
        for text in new:
            console.print(text, soft_wrap=True)  # a pipe has no width; unwrapped lines can be searched
        shown.update(new)
    return job


def _looks(library: Library, name: str) -> Iterator[Job]:
    """Yield the job's state periodically, the last time after its end."""
    while True:
        job = library.queue.get(name)
        yield job
        if job.state in _ENDED:
            return
        time.sleep(_LOOK_SEC)
