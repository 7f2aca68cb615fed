"""`fleet agent`: serve this machine's devices, as `python -m device_agents` does, or bring an agent to a board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from device_agents.options import AgentOptions
from fleet.base.network import host_of, is_loopback
from fleet.base.settings import Source, look_up
from fleet.cli import joined, options, process_options
from fleet.cli.approval import approve, pending, refuse
from fleet.cli.bundle import bundle
from fleet.cli.deploy import deploy

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def agent() -> None:
    """Serve devices: an agent runs beside the hardware and brings it into the fleet."""


app.command()(bundle)
app.command()(deploy)
app.command()(pending)
app.command()(approve)
app.command()(refuse)


@app.command()
@process_options.takes(AgentOptions)
def serve(ctx: typer.Context, serving: AgentOptions, tracker: options.TrackerOption = None) -> None:
    """Serve this machine's devices until Ctrl-C. If the tracker is not there yet, wait for it, for ever.

    It joins the fleet of a tracker of this account by itself. At others it waits until an admin approves the code that
    it shows ('fleet agent approve'), or takes a token ('fleet agent join').

    Without --tracker and --config it looks for a tracker that advertises itself by zeroconf, and takes 127.0.0.1:9290
    when there is none. It never asks such a tracker for approval.

    Example: fleet agent serve --tracker 10.0.0.5:9290 --config agent.yaml
    """
    from device_agents.run import run_agent

    setting = look_up("tracker", tracker)
    # The tracker in agent.yaml goes before that of this account's clients.
    address = None if serving.config is not None and setting.source is Source.FILE else setting.asked
    found = _discovered() if address is None and serving.config is None else None
    serving = replace(serving, tracker=address or found, asks_to_join=serving.asks_to_join and found is None)
    level = (options.settings(ctx).log_level or "info").upper()
    raise typer.Exit(run_agent(replace(serving, log_level=level)))


@app.command()
def join(
    token: joined.RefusedToken = None,
    tracker: options.TrackerOption = None,
    token_file: joined.TokenFileOption = joined.BY_STDIN,
    state_dir: Annotated[Path | None, typer.Option(help="Where the agent keeps its state, its key too.")] = None,
    json_output: options.JsonOption = False,
) -> None:
    """Join the fleet of a tracker as the agent of this machine. The agent keeps its key for good.

    An admin creates the single-use join token (fleet tracker token create --role agent). It is read from a prompt,
    stdin or a file, because every account of this machine can read arguments.

    Example: fleet agent join --tracker 10.0.0.5:9290
    """
    from device_agents.run import join_fleet

    found = joined.read_token(token, token_file, instead="fleet agent join")
    address = options.tracker_address(tracker)
    path, member = options.run(join_fleet(found, address, state_dir))
    if json_output:
        options.print_json(joined.as_data(address, member, path))
        return
    joined.tell(address, member, path)
    beyond = "" if is_loopback(host_of(address)) else " --allow-network"
    options.stderr().print(f"now: fleet agent serve --tracker {address}{beyond}")


def _discovered() -> str | None:
    from fleet.wire.discovery import find_tracker

    options.stderr().print("looking for a tracker on this network")
    address = options.run(find_tracker())
    if address is not None:
        options.stderr().print(f"found a tracker at {address}")
    return address
