"""`fleet login`: makes this account a member of a tracker's fleet."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.base.machine import account_name
from fleet.base.network import addresses_of
from fleet.cli import joined, options


def login(
    token: joined.RefusedToken = None,
    tracker: options.TrackerOption = None,
    token_file: joined.TokenFileOption = joined.BY_STDIN,
    name: Annotated[
        str | None, typer.Option(help="Name shown to others, unless the token has a note. Default: USER@HOST.")
    ] = None,
    json_output: options.JsonOption = False,
) -> None:
    """Join the fleet of a tracker as this account.

    An admin creates the single-use join token (fleet tracker token create --role user). It is read from a prompt,
    stdin or a file, because every account of this machine can read arguments.

    From then on every command and program of this account finds its way to the tracker by this address.

    Example: fleet login --tracker 10.0.0.5:9290
    """
    from fleet.identity.roles import Role
    from fleet.identity.store import CredentialStore
    from fleet.wire.joining import join

    found = joined.read_token(token, token_file, instead="fleet login")
    address = addresses_of(options.tracker_address(tracker))[0]
    roles = frozenset({Role.USER, Role.ADMIN})
    credentials, member = options.run(join(address, found, name=name or account_name(), roles=roles))
    path = CredentialStore().save(address, credentials)
    if json_output:
        options.print_json(joined.as_data(address, member, path))
        return
    joined.tell(address, member, path)
