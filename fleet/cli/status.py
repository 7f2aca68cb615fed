"""`fleet status`: the fleet at a glance."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

import fleet.aio
from fleet.cli import options
from fleet.dashboard.app import show
from fleet.dashboard.view import render
from fleet.wire.json_shape import snapshot_json


def status(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Print once instead of staying.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, metavar="SEC", help="Least time between two updates.")] = 1.0,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Show devices, the queue and running jobs, live until Ctrl-C.

    With --json it prints the fleet once as data. If stdout is not a terminal it prints once, too.

    Example: fleet status --once --tracker 10.0.0.5:9290
    """
    console = Console(highlight=False)
    is_once = once or not console.is_terminal
    as_json = options.wants_json(ctx, json_output)
    address = options.tracker_address(ctx, tracker)

    async def work() -> None:
        async with fleet.aio.connect(address, connect_timeout_sec=connect_timeout) as client:
            if as_json:
                options.print_json(snapshot_json(await client.snapshot()))
            elif is_once:
                snapshot = await client.snapshot()
                console.print(render(snapshot, snapshot.taken_at_sec, address=client.address, width=console.width))
            else:
                await show(client, console, interval)

    options.run(work())
