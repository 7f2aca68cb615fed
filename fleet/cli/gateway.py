"""`fleet gateway serve`: stock TVM clients use the fleet's devices by their own RPC protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli import options
from fleet.cli.options import ConnectTimeoutOption, TrackerOption

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def gateway() -> None:
    """Let scripts with TVM's RPCRunner or rpc.connect_tracker use the fleet, by changing the address."""


@app.command()
def serve(
    ctx: typer.Context,
    tracker: TrackerOption = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 9190,
    tvm_version: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION",
            help="Version of TVM of the clients, as 0.27: only devices with this one are granted. Default: that of "
            "this environment.",
        ),
    ] = None,
    lease_class: Annotated[
        str, typer.Option("--class", metavar="CLASS", help="Class of the leases: interactive, normal or batch.")
    ] = "batch",
    metrics: options.MetricsOption = None,
    connect_timeout: ConnectTimeoutOption = 10.0,
) -> None:
    """Serve TVM's tracker protocol on 127.0.0.1 until Ctrl-C, for processes of this user.

    Tracker keys are labels "tvm_key" of devices, else selectors: RPCConfig(tracker_host="127.0.0.1", tracker_port=9190,
    tracker_key="kind=cpu,arch=aarch64"). Each session gets a device of its own, by a lease of this account, and a fresh
    worker in its jail.

    Example: fleet gateway serve --tracker 10.0.0.5:9290
    """
    from fleet.base import logs
    from fleet.gateway.run import run_gateway, wanted_options

    logs.setup(options.settings(ctx).log_level or "info")
    wanted = wanted_options(port, tvm_version, lease_class)
    options.run_service(run_gateway(options.tracker_address(tracker), wanted, connect_timeout, metrics))
