"""`fleet poison`: programs that killed a device, which all agents refuse."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fleet.base.quantities import age_text, elapsed_text
from fleet.cli import options
from fleet.cli.tables import make_console, text_table
from fleet.dashboard import formatting
from fleet.domain.poison import Poison, checked_digest
from fleet.errors import InvalidRequest, NotFound
from fleet.wire.json_shape import poison_json

if TYPE_CHECKING:
    from fleet.client.aio import Fleet

app = typer.Typer(no_args_is_help=True, add_completion=False)

_SHOWN_DIGITS = 12
"""Digits of a digest in the table: `forget` takes them, too."""
_PREFIX = "sha256:"
_DIGEST_CHARS = len(_PREFIX) + 64


@app.callback()
def poison() -> None:
    """List programs during which a device faulted, and forget them. Agents refuse them for seven days."""


@app.command("list")
def list_poison(
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """List programs that killed a device, oldest first. --json prints whole digests.

    Example: fleet poison list
    """
    found = options.query_tracker(tracker, connect_timeout, lambda client: client.poison())
    if json_output:
        options.print_json({"programs": list(map(poison_json, found))})
        return
    console, now_sec = make_console(is_wide=False), time.time()
    if not found:
        console.print("no program is refused")
        return
    table = text_table("program", "device", "reported by", "found", "forgotten in", whole=["program"])
    for each in found:
        table.add_row(
            _short(each.digest),
            Text(formatting.short_name(each.device_name)),
            Text(each.reported_by or "-"),
            f"{age_text(each.at_sec, now_sec)} ago",
            elapsed_text(each.expires_sec - now_sec),
        )
    console.print(table)


@app.command()
def forget(
    digest: Annotated[str, typer.Argument(help="The digest, or its first digits if no other begins with them.")],
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Have all agents run a program again: not the program was to blame, but the device. For admins.

    Attached agents know it within five seconds.

    Example: fleet poison forget 3f2a9c01b7de
    """
    digits = digest.strip().removeprefix(_PREFIX)
    if not digits:  # as from an unset variable
        raise InvalidRequest("name a program by its digest; 'fleet poison list' shows them")

    async def work(client: Fleet) -> Poison:
        named = f"{_PREFIX}{digits}"
        if len(named) < _DIGEST_CHARS:
            named = _only(named, await client.poison())
        return await client.forget_poison(checked_digest(named))

    done = options.query_tracker(tracker, connect_timeout, work)
    if json_output:
        options.print_json({"programs": [poison_json(done)]})
        return
    device = formatting.short_name(done.device_name)
    options.stderr().print(f"forgot {_short(done.digest)}, which ran when {device} faulted: agents run it again")


def _only(beginning: str, found: list[Poison]) -> str:
    """Return the only digest that begins like this.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several.
    """
    named = [each.digest for each in found if each.digest.startswith(beginning)]
    if not named:
        raise NotFound(f"no agent refuses a program {beginning[:_DIGEST_CHARS]!r}; 'fleet poison list' lists them")
    if len(named) > 1:
        raise InvalidRequest(f"{len(named)} programs begin with {beginning!r}; give more digits")
    return named[0]


def _short(digest: str) -> str:
    return digest.removeprefix(_PREFIX)[:_SHOWN_DIGITS]
