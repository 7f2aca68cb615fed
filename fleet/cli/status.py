"""`fleet status`: the fleet at a glance."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import fleet.aio
from fleet.base.imports import no_collection
from fleet.cli import options
from fleet.cli.terminal import CleanConsole
from fleet.dashboard.view import render
from fleet.wire.json_shape import snapshot_json


def status(
    once: Annotated[bool, typer.Option("--once", help="Print once instead of staying.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, callback=options.finite, metavar="SEC", help="Least time between two updates.")
    ] = 1.0,
    json_output: options.JsonOption = False,
    library: options.LibraryOption = None,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Show devices, the queue and running jobs, live until q; the keys are at the bottom.

    What a job does is read from its library. With --json it prints the fleet once as data. If it does not run on a
    terminal it prints once, too.

    Example: fleet status --once --tracker 10.0.0.5:9290
    """
    console = CleanConsole(highlight=False, markup=False)
    is_once = once or console.is_dumb_terminal or not _is_terminal()
    as_json = json_output
    address = options.tracker_address(tracker)

    async def work() -> int:
        async with options.connected(address, connect_timeout_sec=connect_timeout) as client:
            if as_json:
                options.print_json(snapshot_json(await client.snapshot()))
            elif is_once:
                snapshot = await client.snapshot()
                console.print(render(snapshot, snapshot.taken_at_sec, address=client.address, width=console.width))
            else:
                return await _stay(client, library, interval)
            return 0

    code = options.run(work())
    if code:
        raise typer.Exit(code)


async def _stay(client: fleet.aio.Fleet, library: str | None, interval_sec: float) -> int:
    """Show the fleet until the user quits; return the exit code."""
    with no_collection():
        from fleet.cli.job_book import LibraryJobs
        from fleet.dashboard.app import show
    return await show(client, LibraryJobs(library), interval_sec)


def _is_terminal() -> bool:
    """Tell whether the application can run interactively: it draws on stderr, as editors do."""
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
