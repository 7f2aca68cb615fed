"""`fleet request list|cancel|why`: requests that wait for a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.quantities import age_text
from fleet.cli import completion_values, options
from fleet.cli.tables import make_console, text_table
from fleet.dashboard.explanation import render_explanation
from fleet.domain.explanation import Explanation
from fleet.domain.leases import PendingRequest
from fleet.domain.snapshot import Snapshot
from fleet.errors import InvalidRequest
from fleet.wire.json_shape import explanation_json, request_json

if TYPE_CHECKING:
    from fleet.client.aio import Fleet

app = typer.Typer(no_args_is_help=True, add_completion=False)

_SHOWN_ID_CHARS = 8
"""Enough of a random id to tell it from the others; `cancel` takes as much of it as is typed."""

_NO_ID = "name a request by the beginning of its id; 'fleet request list' shows them"


@app.callback()
def request() -> None:
    """List who waits for devices and why, or cancel a request."""


@app.command("list")
def list_(
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List the requests that wait for a device, in the order in which they are served.

    Example: fleet request list
    """
    snapshot = options.query_tracker(tracker, connect_timeout, lambda client: client.snapshot())
    if json_output:
        shown = list(map(request_json, snapshot.requests))
        options.print_json({"requests": shown, "request_count": snapshot.request_count})
        return
    console = make_console(is_wide=False)
    hidden = snapshot.request_count - len(snapshot.requests)
    if snapshot.requests or hidden <= 0:
        console.print(_table(snapshot) if snapshot.requests else "nobody waits")
    if hidden > 0:
        console.print(f"and {hidden} more" if snapshot.requests else f"{hidden} wait for their clients to come back")


@app.command()
def cancel(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The request, or the beginning of its id.", autocompletion=completion_values.requests
        ),
    ],
    reason: Annotated[str, typer.Option(help="Shown to the clients that wait.")] = "",
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Cancel a waiting request: one of your own, or any as an admin. Its client receives the reason.

    Example: fleet request cancel 3f2a91c0 --reason "the board goes to the workshop"
    """

    if not request_id:  # every id begins with an empty text, as from an unset variable
        raise InvalidRequest(_NO_ID)

    async def cancel_whole(client: Fleet) -> PendingRequest:
        known = [each.request_id for each in (await client.snapshot()).requests]
        return await client.cancel_request(_whole(request_id, known), reason)

    done = options.query_tracker(tracker, connect_timeout, cancel_whole)
    if json_output:
        options.print_json({"requests": [request_json(done)]})
        return
    options.stderr().print(f"cancelled {done.request_id}: {done.asked_by} waits no more for {done.terms.wanted}")


@app.command()
def why(
    request_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="The request, or the beginning of its id.", autocompletion=completion_values.requests
        ),
    ],
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Explain why a request waits: its share, its quota, the devices that would do, and clauses that cost it time.

    Example: fleet request why 3f2a91c0
    """
    if not request_id:
        raise InvalidRequest(_NO_ID)

    async def explain(client: Fleet) -> Explanation:
        known = [each.request_id for each in (await client.snapshot()).requests]
        return await client.explain_request(_whole(request_id, known))

    found = options.query_tracker(tracker, connect_timeout, explain)
    if json_output:
        options.print_json(explanation_json(found))
        return
    make_console(is_wide=False).print(render_explanation(found, has_request=True))


def _whole(beginning: str, known: list[str]) -> str:
    """Return the id with this prefix. A prefix without an id is returned unchanged, since the tracker lists only the
    first thousand.

    Raises:
        InvalidRequest: several do.
    """
    found = [name for name in known if name.startswith(beginning)]
    if len(found) > 1 and beginning not in found:
        raise InvalidRequest(f"{len(found)} requests begin with {beginning!r}; type more of the id")
    return beginning if beginning in found or not found else found[0]


def _table(snapshot: Snapshot) -> Table:
    table = text_table(
        "request", "holder", "wants", "class", "priority", "waits", "because", "purpose", whole=["request"]
    )
    for each in snapshot.requests:
        table.add_row(
            Text(each.request_id[:_SHOWN_ID_CHARS]),
            Text(each.asked_by),
            Text(each.terms.wanted),
            each.terms.lease_class.value,
            str(each.terms.priority),
            age_text(each.asked_at_sec, snapshot.taken_at_sec),
            Text(each.reason),
            Text(each.terms.purpose),
        )
    return table
