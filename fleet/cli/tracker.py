"""`fleet tracker serve`: the same tracker as `python -m fleet.tracker`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli import options
from fleet.config import TRACKER_PORT

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def tracker() -> None:
    """Serve a tracker: it knows the devices, grants leases, and keeps the queue."""


@app.command()
def serve(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = TRACKER_PORT,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where leases, queue and the signing key are kept over restarts.")
    ] = None,
    allow_network: Annotated[
        bool,
        typer.Option("--allow-network", help="Listen beyond this machine. Whoever reaches the port takes devices."),
    ] = False,
    no_discovery: Annotated[bool, typer.Option("--no-discovery", help="Do not announce it by zeroconf.")] = False,
) -> None:
    """Serve a tracker until Ctrl-C.

    Example: fleet tracker serve --state-dir /var/lib/tvm-fleet
    """
    from fleet.tracker.__main__ import main

    argv = ["--host", host, "--port", str(port)]
    if state_dir is not None:
        argv += ["--state-dir", str(state_dir)]
    if allow_network:
        argv.append("--allow-network")
    if no_discovery:
        argv.append("--no-discovery")
    level = (options.settings(ctx).log_level or "info").upper()
    raise typer.Exit(main([*argv, "--log-level", level]))
