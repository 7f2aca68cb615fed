"""`fleet login TOKEN`: makes this account a member of a tracker's fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.base.machine import account_name
from fleet.cli import options


def login(
    ctx: typer.Context,
    token: Annotated[str, typer.Argument(help="From an admin: fleet tracker token create --role user.")],
    tracker: options.TrackerOption = None,
    name: Annotated[str | None, typer.Option(help="What others see. Default: USER@HOST.")] = None,
    json_output: options.JsonOption = False,
) -> None:
    """Join the fleet of a tracker, for this account. The token says which fleet that is, and is used up.

    From then on every command and program of this account finds its way to the tracker by this address.

    Example: fleet login fleet1.XXXX.XXXX --tracker 10.0.0.5:9290
    """
    from fleet.identity.join_tokens import parse_join_token
    from fleet.identity.store import CredentialStore
    from fleet.wire.joining import join

    address = options.tracker_address(ctx, tracker)
    credentials, role = options.run(join(address, parse_join_token(token), name=name or account_name()))
    path = CredentialStore().save(address, credentials)
    if options.wants_json(ctx, json_output):
        options.print_json({"tracker": address, "role": str(role), "key_file": str(path)})
        return
    options.stderr().print(f"joined the fleet of {address} as {role}; the key is in {path}")
