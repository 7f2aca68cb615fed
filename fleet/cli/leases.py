"""`fleet leases`: live leases and their holders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import age_text, elapsed_text
from fleet.cli import completion_values, options
from fleet.cli.tables import make_console, text_table
from fleet.dashboard import formatting
from fleet.domain.snapshot import Snapshot
from fleet.wire.json_shape import lease_json

if TYPE_CHECKING:
    from fleet.client.aio import Fleet

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
    if ctx.invoked_subcommand is not None:
        return
    snapshot = options.query_tracker(tracker, connect_timeout, lambda client: client.snapshot())
    if json_output:
        options.print_json({"leases": list(map(lease_json, snapshot.leases))})
        return
    make_console(is_wide=False).print(_table(snapshot) if snapshot.leases else "no leases")


@app.command()
def revoke(
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
    full_name = f"leases/{name.removeprefix('leases/')}"
    lease = options.query_tracker(tracker, connect_timeout, lambda client: client.revoke(full_name, reason))
    if json_output:
        options.print_json({"leases": [lease_json(lease)]})
        return
    options.stderr().print(f"revoked {lease.name}: {lease.device_name} is no longer held by {lease.held_by}")


@app.command()
def logs(
    name: Annotated[
        str, typer.Argument(help="The lease, with or without 'leases/'.", autocompletion=completion_values.leases)
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the lease's session ends.")] = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Print the output of a lease's workers, stdout and stderr, also after its end.

    For its holder and admins. Agents keep the first MiB of each lease for seven days, and 100 MiB of all leases.

    Example: fleet leases logs 42 --follow
    """

    async def work(client: Fleet) -> None:
        async for text in client.lease_log(f"leases/{name.removeprefix('leases/')}", follow=follow):
            typer.echo(text, nl=False)

    options.query_tracker(tracker, connect_timeout, work)


def _table(snapshot: Snapshot) -> Table:
    now_sec = snapshot.taken_at_sec
    table = text_table(
        "lease", "device", "holder", "class", "held", "renew within", "ends", "purpose", whole=["lease", "class"]
    )
    for lease in snapshot.leases:
        table.add_row(
            formatting.short_name(lease.name),
            formatting.short_name(lease.device_name),
            Text(lease.held_by),
            lease.lease_class or "-",
            age_text(lease.granted_at_sec, now_sec),
            elapsed_text(lease.expires_at_sec - now_sec),
            f"in {elapsed_text(lease.ends_at_sec - now_sec)}",
            Text(lease.purpose),
        )
    return table
