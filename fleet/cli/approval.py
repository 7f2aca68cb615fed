"""`fleet agent pending`, `approve` and `refuse`: agents that ask to join without a token."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.cli import options
from fleet.cli.tables import make_console, utc_text

_KEY_DIGITS = 12
_Code = Annotated[str, typer.Argument(metavar="CODE", help="As the agent shows it. Case and hyphens do not matter.")]


def pending(tracker: options.TrackerOption = None, json_output: options.JsonOption = False) -> None:
    """List the agents that ask to join without a token. For admins.

    Example: fleet agent pending
    """
    found = options.query_identities(tracker, lambda calls: calls.pending_agents())
    if json_output:
        options.print_json({"agents": [asdict(agent) for agent in found]})
        return
    table = Table("code", "name", "from", "since", "key", box=None, pad_edge=False, header_style="dim")
    for each in found:
        cells = (each.code, each.name, each.host, utc_text(each.asked_at_sec), each.key_id[:_KEY_DIGITS])
        table.add_row(*map(Text, cells))
    make_console(is_wide=False).print(table if found else "no agent waits for approval")
    if found:
        options.stderr().print("compare the code with the one that the agent shows, then: fleet agent approve CODE")


def approve(
    code: _Code,
    name: Annotated[str, typer.Option(help="Name of the new member. Default: the board's host name.")] = "",
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Let a waiting agent join the fleet. Type the code from the agent's own output: it proves that no other asks.

    Example: fleet agent approve K7QX-2M4D-PZ5A
    """
    member = options.query_identities(tracker, lambda calls: calls.approve_agent(code, name))
    if json_output:
        options.print_json(asdict(member))
        return
    options.stderr().print(Text(f"agent {member.name} ({member.key_id[:8]}) has joined the fleet"))


def refuse(
    code: _Code,
    reason: Annotated[str, typer.Option(help="For people; the agent shows it.")] = "",
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Turn a waiting agent away.

    Example: fleet agent refuse K7QX-2M4D-PZ5A --reason 'not of this lab'
    """
    agent = options.query_identities(tracker, lambda calls: calls.refuse_agent(code, reason))
    if json_output:
        options.print_json(asdict(agent))
        return
    options.stderr().print(Text(f"agent {agent.name} ({agent.key_id[:8]}) was refused"))
