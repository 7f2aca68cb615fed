"""`fleet usage`: device time of accounts, devices or classes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from fleet.base.quantities import elapsed_text, parse_duration
from fleet.cli import options
from fleet.cli.tables import make_console, make_table, utc_text
from fleet.dashboard import formatting
from fleet.domain.accounts import account_text
from fleet.domain.usage import Usage, UsageKey, UsageRow
from fleet.errors import InvalidRequest
from fleet.wire.json_shape import usage_json


def usage(
    by: Annotated[UsageKey, typer.Option(help="Subject of each row.")] = UsageKey.ACCOUNT,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Time in which leases ended: 12h, 7d; at most 90d.")
    ] = "7d",
    json_output: options.JsonOption = False,
    tracker: options.TrackerOption = None,
    connect_timeout: options.ConnectTimeoutOption = 10.0,
) -> None:
    """Show the device time of accounts, devices or classes, their shares, and their mean waits.

    Leases count when they end.

    Example: fleet usage --by account --since 7d
    """
    since_sec = parse_duration(since)
    if since_sec is None:
        raise InvalidRequest(f"--since {since!r} is no length of time; write it like 12h or 7d")
    found = options.query_tracker(tracker, connect_timeout, lambda client: client.usage(by, since_sec))
    if json_output:
        options.print_json({"by": by.value, **usage_json(found)})
        return
    console = make_console(is_wide=False)
    if not found.rows:
        console.print(f"no lease has ended since {utc_text(found.since_sec)}")
        return
    table = make_table(by.value, "leases", "device time", "share", "mean wait", left=frozenset({by.value}))
    for row in found.rows:
        table.add_row(*_cells(row, by, found))
    console.print(table)


def _cells(row: UsageRow, by: UsageKey, usage: Usage) -> tuple[str | Text, ...]:
    wait = "-" if row.wait_sec is None else elapsed_text(row.wait_sec)
    name = Text(_name(row, by), no_wrap=True, overflow="ellipsis")
    return name, str(row.lease_count), elapsed_text(row.device_sec), f"{usage.share(row):.1%}", wait


def _name(row: UsageRow, by: UsageKey) -> str:
    if by is UsageKey.DEVICE:
        return formatting.short_name(row.key)
    account = account_text(row.key) if by is UsageKey.ACCOUNT else row.key
    return row.holder if account != row.key or not account else account
