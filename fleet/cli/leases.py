"""`fleet leases`: live leases and their holders."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import age_text, elapsed_text
from fleet.cli import completion_values, options
from fleet.cli.tables import make_console
from fleet.dashboard import formatting
from fleet.domain.leases import Lease
from fleet.domain.snapshot import Snapshot
from fleet.wire.json_shape import lease_json

app = typer.Typer(invoke_without_command=True, add_completion=False)


@app.callback()
def leases(
    ctx: typer.Context,
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List the live leases.

    Example: fleet leases
    """
    ctx.obj = (options.settings(ctx), tracker, json_output)
    if ctx.invoked_subcommand is not None:
        return

    async def work() -> Snapshot:
        address = options.tracker_address(ctx, tracker)
        async with options.connected(address, connect_timeout_sec=connect_timeout) as client:
            return await client.snapshot()

    snapshot = options.run(work())
    if options.wants_json(ctx, json_output):
        options.print_json({"leases": list(map(lease_json, snapshot.leases))})
        return
    make_console(is_wide=False).print(_table(snapshot) if snapshot.leases else "no leases")


@app.command()
def revoke(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(help="The lease, with or without 'leases/'.", autocompletion=completion_values.leases)
    ],
    reason: Annotated[str, typer.Option(help="Shown to the holder.")] = "",
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Take a device away from its holder.

    The holder's session ends at once, its worker is killed, and its calls fail with the reason.

    Example: fleet leases revoke 42 --reason "needed for the release"
    """
    _, outer_tracker, outer_json = ctx.obj

    async def work() -> Lease:
        address = options.tracker_address(ctx, tracker or outer_tracker)
        async with options.connected(address, connect_timeout_sec=connect_timeout) as client:
            return await client.revoke(f"leases/{name.removeprefix('leases/')}", reason)

    lease = options.run(work())
    if options.wants_json(ctx, json_output or outer_json):
        options.print_json({"leases": [lease_json(lease)]})
        return
    options.stderr().print(f"revoked {lease.name}: {lease.device_name} is no longer held by {lease.held_by}")


def _table(snapshot: Snapshot) -> Table:
    now_sec = snapshot.taken_at_sec
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("lease", "device", "holder", "held", "renew within", "ends", "purpose"):
        table.add_column(column, overflow="fold")
    for lease in snapshot.leases:
        table.add_row(
            formatting.short_name(lease.name),
            formatting.short_name(lease.device_name),
            Text(lease.held_by),
            age_text(lease.granted_at_sec, now_sec),
            elapsed_text(lease.expires_at_sec - now_sec),
            f"in {elapsed_text(lease.ends_at_sec - now_sec)}",
            Text(lease.purpose),
        )
    return table
