"""`fleet gateway`: stock TVM clients use the fleet's devices by their own RPC protocol."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from fleet.base.command_line import parse, to_argv
from fleet.base.config import at_home
from fleet.cli import gateway_key, options, process_options
from fleet.cli.options import ConnectTimeoutOption, TrackerOption
from fleet.cli.units import print_unit
from fleet.gateway.options import GatewayOptions

app = typer.Typer(no_args_is_help=True, add_completion=False)
app.add_typer(gateway_key.app, name="key")


@app.callback()
def gateway() -> None:
    """Let scripts with TVM's RPCRunner or rpc.connect_tracker use the fleet, by changing the address."""


@app.command()
@process_options.takes(GatewayOptions)
def serve(
    ctx: typer.Context,
    serving: GatewayOptions,
    tracker: TrackerOption = None,
    connect_timeout: ConnectTimeoutOption = 10.0,
) -> None:
    """Serve TVM's tracker protocol on 127.0.0.1 until Ctrl-C, for processes of this user.

    Tracker keys are labels "tvm_key" of devices, else selectors: RPCConfig(tracker_host="127.0.0.1", tracker_port=9190,
    tracker_key="kind=cpu,arch=aarch64"). Each session gets a device of its own, by a lease of this account, and a fresh
    worker in its jail.

    Example: fleet gateway serve --tracker 10.0.0.5:9290
    """
    from fleet.base import logs
    from fleet.gateway.run import run_gateway

    logs.setup(options.settings(ctx).log_level or "info")
    options.run_service(run_gateway(options.tracker_address(tracker), serving, connect_timeout))


@app.command(context_settings={"ignore_unknown_options": True})
def unit(
    serve_options: Annotated[
        list[str] | None, typer.Argument(metavar="[-- OPTIONS]", help="Options of 'fleet gateway serve'.")
    ] = None,
    tracker: TrackerOption = None,
) -> None:
    """Print a systemd unit that keeps a gateway running for its user, also after a restart of the machine.

    Example: fleet gateway unit --tracker 10.0.0.5:9290 > ~/.config/systemd/user/fleet-gateway.service
    """
    # Validate now: the gateway would only refuse these options when the service starts.
    asked = parse(GatewayOptions, serve_options or [], command="fleet gateway serve")
    asked.check()
    folder = asked.state_dir
    asked = replace(asked, state_dir=at_home(folder).resolve() if folder is not None else None)
    command = (sys.executable, "-m", "fleet", "gateway", "serve", "--tracker", options.tracker_address(tracker))
    print_unit("gateway", "serves stock TVM clients of this user", [*command, *to_argv(asked)])
