"""`fleet tracker token`: single-use tokens that let agents, people, optimizers and a standby join a fleet."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.base.network import host_of, is_loopback
from fleet.base.quantities import parse_duration
from fleet.cli import options
from fleet.cli.tables import make_console, utc_text
from fleet.domain.accounts import account_rights_text
from fleet.domain.leases import LONGEST_SEC

app = typer.Typer(no_args_is_help=True, add_completion=False)


class JoinRole(StrEnum):
    """Role of a token's user."""

    AGENT = "agent"
    USER = "user"
    ADMIN = "admin"
    STANDBY = "standby"


_JOINING = {JoinRole.AGENT: "fleet agent join", JoinRole.STANDBY: "fleet tracker join"}
"""Commands on the joining machine, by role; else `fleet login`."""


def life(text: str | float) -> float:
    """Parse a duration: "90", "90s", "10m", "2h" or "1d". Invalid text is a usage error."""
    sec = parse_duration(str(text))
    if sec is None:
        raise typer.BadParameter(f"{text!r} is not a length of time; write it like 10m, 2h or 1d")
    if not 0 < sec <= LONGEST_SEC:
        raise typer.BadParameter(f"{text} is not above zero, or longer than any token lives")
    return sec


def there(role: JoinRole, address: str) -> str:
    """Return the command to run on the joining machine. A loopback address gets a placeholder for the host."""
    command = _JOINING.get(role, "fleet login")
    if not is_loopback(host_of(address)):
        return f"there: {command} --tracker {address}   (it prompts for the token)"
    port = address.rpartition(":")[2]
    return (
        f"there: {command} --tracker HOST:{port}   (it prompts for the token)\n"
        f"HOST is this machine's address; its tracker has to listen beyond it: fleet tracker serve --allow-network"
    )


@app.callback()
def token() -> None:
    """Let somebody into the fleet: a token is used once, and expires."""


@app.command()
def create(
    role: Annotated[JoinRole, typer.Option(help="What its user will be.", show_choices=True)] = JoinRole.USER,
    ttl: Annotated[
        float,
        typer.Option(
            parser=life, metavar="TIME", help="How long it can be used: 10m, 2h, 1d. Default: 10m.", show_default=False
        ),
    ] = 600.0,
    note: Annotated[str, typer.Option(help="Person or board that gets the token: becomes the member's name.")] = "",
    account: Annotated[
        str, typer.Option(metavar="NAME", help="Account that its user's requests count for. Default: its user's key.")
    ] = "",
    for_others: Annotated[
        bool, typer.Option("--for-others", help="Its user may ask for other accounts: an optimizer, a gateway.")
    ] = False,
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make a token, and print it. Who has it first joins: send it as you would send a password.

    Example: fleet tracker token create --role agent --ttl 10m
    """
    from fleet.identity.roles import Role

    made, invitation = options.query_identities(
        tracker,
        lambda calls: calls.invite(
            Role(role.value), ttl_sec=ttl, note=note, account=account, may_ask_for_others=for_others
        ),
    )
    if json_output:
        options.print_json({"token": str(made), **asdict(invitation)})
        return
    print(made)
    options.stderr().print(there(role, options.tracker_address(tracker)))


@app.command("list")
def list_tokens(tracker: options.TrackerOption = None, json_output: options.JsonOption = False) -> None:
    """List the tokens that are neither used nor expired. The tokens themselves are not stored.

    Example: fleet tracker token list
    """
    found = options.query_identities(tracker, lambda calls: calls.invitations())
    if json_output:
        options.print_json({"tokens": [asdict(invitation) for invitation in found]})
        return
    table = Table("id", "role", "until", "made by", "account", "note", box=None, pad_edge=False, header_style="dim")
    for each in found:
        until = utc_text(each.expires_at_sec)
        account = account_rights_text(each.account, may_ask_for_others=each.may_ask_for_others)
        table.add_row(*map(Text, (each.token_id, str(each.role), until, each.created_by, account, each.note)))
    make_console(is_wide=False).print(table if found else "no token waits to be used")


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As 'fleet tracker token list' shows it.")],
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Invalidate a token. Members that have joined with it stay.

    Example: fleet tracker token revoke 3f9a0c12b7de
    """
    options.query_identities(tracker, lambda calls: calls.uninvite(token_id))
    if json_output:
        options.print_json({"token_id": token_id})
        return
    options.stderr().print(f"nobody can join with token {token_id} any more", markup=False)
