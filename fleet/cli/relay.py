"""`fleet relay`: clients reach agents behind an address translator."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from fleet.base.command_line import parse, to_argv
from fleet.cli import options, process_options
from fleet.cli.options import TrackerOption
from fleet.cli.units import print_unit
from fleet.relay.options import RelayOptions

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def relay() -> None:
    """Lead clients to agents behind an address translator, which dial out to the relay."""


@app.command()
@process_options.takes(RelayOptions)
def serve(ctx: typer.Context, serving: RelayOptions, tracker: TrackerOption = None) -> None:
    """Serve agents and clients of one fleet until Ctrl-C.

    Agents name the relay in agent.yaml (relay: relay.example.org:9292). Their clients learn it from the tracker, and
    use it if they cannot reach an agent directly. TLS is end to end: the relay reads the agent's name only.

    Example: fleet relay serve --tracker 10.0.0.5:9290 --allow-network
    """
    from fleet.base import logs
    from fleet.relay.run import run_relay

    logs.setup(options.settings(ctx).log_level or "info")
    options.run_service(run_relay(options.tracker_address(tracker), serving))


@app.command(context_settings={"ignore_unknown_options": True})
def unit(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of 'fleet relay serve'.")
    ] = None,
    tracker: TrackerOption = None,
) -> None:
    """Print a systemd unit that keeps a relay running for its user, also after a restart of the machine.

    Example: fleet relay unit -- --allow-network > ~/.config/systemd/user/fleet-relay.service
    """
    # Validate now: the relay would only refuse these options when the service starts.
    asked = parse(RelayOptions, serve_options or [], command="fleet relay serve")
    asked.check()
    command = (sys.executable, "-m", "fleet", "relay", "serve", "--tracker", options.tracker_address(tracker))
    print_unit("relay", "leads clients to agents behind address translators", [*command, *to_argv(asked)])
