"""`fleet audit`: who did what in the fleet."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.cli import options
from fleet.cli.tables import make_console


def audit(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many entries, the newest.")] = 50,
    tracker: options.TrackerOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Show what was done in the fleet, by whom, and what was refused. For admins.

    Example: fleet audit -n 100 --json
    """
    from fleet.client.identity_calls import IdentityCalls
    from fleet.identity.audit_entry import AuditEntry

    async def work() -> list[AuditEntry]:
        async with IdentityCalls(options.tracker_address(ctx, tracker)) as calls:
            return await calls.deeds(limit)

    deeds = options.run(work())
    if options.wants_json(ctx, json_output):
        options.print_json({"deeds": [asdict(deed) for deed in deeds]})
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("when", "who", "did", "outcome"):
        table.add_column(column, overflow="fold")
    for deed in deeds:
        when = datetime.fromtimestamp(deed.at_sec, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        who = f"{deed.role} {deed.name} {deed.key_id[:8]}"
        table.add_row(when, *map(Text, (who, f"{deed.action} {_plain(deed.subject)}", deed.outcome)))
    make_console(is_wide=False).print(table)


def _plain(subject: str) -> str:
    """Return what something was done to, without JSON's brackets; as it is where the log has cut it off."""
    try:
        return " ".join(f"{name}={value}" for name, value in json.loads(subject or "{}").items())
    except ValueError:
        return subject
