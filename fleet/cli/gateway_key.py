"""`fleet gateway key`: keys by which stock clients on other machines use a gateway."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.table import Table
from rich.text import Text

from fleet.cli import options
from fleet.cli.tables import make_console, utc_text
from fleet.gateway.access_keys import AccessKey, AccessKeys
from fleet.gateway.options import GatewayOptions

app = typer.Typer(no_args_is_help=True, add_completion=False)

_StateDirOption: TypeAlias = Annotated[
    Path | None, typer.Option("--state-dir", help="Folder of the hashes of keys, as of 'fleet gateway serve'.")
]


@app.callback()
def key() -> None:
    """Let stock clients on other machines use a gateway, at the expense of an account."""


@app.command()
def create(
    account: Annotated[str, typer.Option(metavar="NAME", help="Account whose share pays.")],
    state_dir: _StateDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Make a key, and print its secret, which is not stored. It crosses the network unencrypted.

    The gateway has to join with the right to request for others: fleet tracker token create --for-others.

    Example: fleet gateway key create --account team-a
    """
    secret, made = _keys(state_dir).create(account, time.time())
    if json_output:
        options.print_json({"secret": secret, **_shown(made)})
        return
    print(secret)
    options.stderr().print(f'there: tracker_key="SECRET/kind=cpu"; to end it: fleet gateway key revoke {made.key_id}')


@app.command("list")
def list_keys(state_dir: _StateDirOption = None, json_output: options.JsonOption = False) -> None:
    """List the keys, with the revoked ones. The tracker's audit log names the key of each lease in its purpose.

    audit.jsonl, beside the keys, tells which user made and revoked them.

    Example: fleet gateway key list
    """
    found = _keys(state_dir).all()
    if json_output:
        options.print_json({"keys": [_shown(one) for one in found]})
        return
    table = Table("id", "account", "made", "revoked", box=None, pad_edge=False, header_style="dim")
    for each in found:
        revoked = utc_text(each.revoked_at_sec) if each.revoked_at_sec is not None else ""
        table.add_row(*map(Text, (each.key_id, each.account, utc_text(each.created_at_sec), revoked)))
    make_console(is_wide=False).print(table if found else "no keys")


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As 'fleet gateway key list' shows it.")],
    state_dir: _StateDirOption = None,
    json_output: options.JsonOption = False,
) -> None:
    """Invalidate a key. Its waiting requests and running sessions end within a second.

    Example: fleet gateway key revoke 3f9a0c12b7de
    """
    revoked = _keys(state_dir).revoke(key_id, time.time())
    if json_output:
        options.print_json(_shown(revoked))
        return
    options.stderr().print(f"no client can use key {revoked.key_id} of {revoked.account} any more", markup=False)


def _keys(state_dir: Path | None) -> AccessKeys:
    return AccessKeys(GatewayOptions(state_dir=state_dir).directory)


def _shown(one: AccessKey) -> dict[str, object]:
    return {name: value for name, value in asdict(one).items() if name != "digest"}
