"""`fleet tracker members` and `fleet tracker revoke`: members of a fleet, and revocation."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.cli import options
from fleet.cli.tables import make_console, utc_text
from fleet.domain.accounts import account_rights_text

_SHOWN_DIGITS = 12
_SHOWN_DEVICES = 3


def members(tracker: options.TrackerOption = None, json_output: options.JsonOption = False) -> None:
    """List the members of the fleet: people, agents and optimizers, also those with revoked keys. For admins.

    Example: fleet tracker members
    """
    found = options.query_identities(tracker, lambda calls: calls.members())
    if json_output:
        options.print_json({"members": [asdict(member) for member in found]})
        return
    titles = ("key", "name", "role", "account", "since", "devices", "revoked")
    table = Table(*titles, box=None, pad_edge=False, header_style="dim")
    for each in found:
        gone = f"{utc_text(each.revoked_at_sec)} {each.reason}" if each.revoked_at_sec is not None else ""
        account = account_rights_text(each.account, may_ask_for_others=each.may_ask_for_others)
        cells = (each.key_id[:_SHOWN_DIGITS], each.name, str(each.role), account, utc_text(each.joined_at_sec))
        table.add_row(*map(Text, (*cells, _devices(each.device_names), gone)))
    make_console(is_wide=False).print(table)


def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="As 'fleet tracker members' shows it, or more of it.")],
    reason: Annotated[str, typer.Option(help="For people; the member sees it, too.")] = "",
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """End a membership: a laptop was lost, a board was sold, somebody left. What the key holds or serves ends at once.

    The owner can join again with another key, when an admin makes a token for it.

    Example: fleet tracker revoke 0a1b2c3d4e5f --reason 'laptop lost'
    """
    done = options.query_identities(tracker, lambda calls: calls.revoke(key, reason))
    if json_output:
        options.print_json(asdict(done))
        return
    said = f"{done.member.role} {done.member.name} ({done.member.key_id[:8]}) is no member any more"
    ended = f"; {len(done.ended_leases)} leases ended" if done.ended_leases else ""
    freed = f"; free now: {_devices(done.freed_devices)}" if done.freed_devices else ""
    options.stderr().print(f"{said}{ended}{freed}")


def _devices(names: tuple[str, ...]) -> str:
    shown = ", ".join(name.removeprefix("devices/") for name in names[:_SHOWN_DEVICES])
    more = len(names) - _SHOWN_DEVICES
    return f"{shown} and {more} more" if more > 0 else shown
