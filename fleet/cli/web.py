"""`fleet web`: the fleet in a browser."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from fleet.base.command_line import parse, to_argv
from fleet.cli import options, process_options
from fleet.cli.options import ConnectTimeoutOption, LibraryOption, TrackerOption
from fleet.cli.units import print_unit
from fleet.web.options import WEB_PORT, WebOptions

app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback()
@process_options.takes(WebOptions)
def web(
    ctx: typer.Context,
    serving: WebOptions,
    library: LibraryOption = None,
    tracker: TrackerOption = None,
    connect_timeout: ConnectTimeoutOption = 10.0,
) -> None:
    """Serve the fleet as pages for browsers until Ctrl-C: devices, queue, bookings, jobs, use by account.

    Pages show what this account may read, to browsers that signed in with a link. On a terminal it prints one to read;
    'fleet web login' prints one to drain, revoke, cancel and book as well.

    Example: fleet web --port 8080
    """
    if ctx.invoked_subcommand is not None:
        return
    from fleet.base import logs
    from fleet.web.run import run_web

    logs.setup(options.settings(ctx).log_level or "info")
    options.run_service(run_web(options.tracker_address(tracker), serving, library, connect_timeout))


@app.command()
def login(
    read: Annotated[bool, typer.Option("--read", help="To read only.")] = False,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="Port of the page.")] = WEB_PORT,
) -> None:
    """Print a link that signs a browser in to the page of this user, once within ten minutes.

    Example: fleet web login
    """
    from fleet.web.login_file import make_link
    from fleet.web.sessions import Right

    print(make_link(port, Right.READ if read else Right.ACT, time.time()))


@app.command(context_settings={"ignore_unknown_options": True})
def unit(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of 'fleet web'.")
    ] = None,
    tracker: TrackerOption = None,
) -> None:
    """Print a systemd unit that keeps the page running for its user, also after a restart of the machine.

    Example: fleet web unit > ~/.config/systemd/user/fleet-web.service
    """
    # Validate now: the page would only refuse these options when the service starts.
    asked = parse(WebOptions, serve_options or [], command="fleet web")
    asked.check()
    certificate, key = (asked.certificate, asked.key)
    asked = replace(asked, certificate=certificate and certificate.resolve(), key=key and key.resolve())
    command = (sys.executable, "-m", "fleet", "web", "--tracker", options.tracker_address(tracker))
    print_unit("web", "shows the fleet in browsers", [*command, *to_argv(asked)])
