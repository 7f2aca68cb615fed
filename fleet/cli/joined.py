"""Shared parts of `fleet login` and `fleet agent join`: token sources, and the report about a new member."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.cli import options

if TYPE_CHECKING:
    from fleet.identity.join_tokens import JoinToken
    from fleet.identity.roles import Identity

BY_STDIN = Path("-")
RefusedToken = Annotated[str | None, typer.Argument(hidden=True)]
"""Token as an argument, as in the first releases: accepted only to raise an error with advice."""

TokenFileOption = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="File with the join token, readable by this account only. Default: -, a prompt or stdin.",
        show_default=False,
    ),
]


def read_token(refused: str | None, source: Path, *, instead: str) -> JoinToken:
    """Return the join token of a command.

    Raises:
        ConfigError: the token is an argument, or in a file that other accounts can read.
        InvalidRequest: the text is not a token.
    """
    from fleet.identity.token_sources import read_join_token, refuse_argument

    if refused is not None:
        raise refuse_argument(refused, instead=instead)
    return read_join_token(source)


def as_data(address: str, member: Identity, key_file: Path) -> dict[str, object]:
    """Return a new member as JSON data."""
    return {
        "tracker": address,
        "role": str(member.role),
        "name": member.name,
        "key_id": member.key_id,
        "key_file": str(key_file),
    }


def tell(address: str, member: Identity, key_file: Path) -> None:
    """Print the new member, with the key's fingerprint for the admin to compare."""
    console = options.stderr()
    console.print(f"joined the fleet of {address} as {member.role} {member.name}; the key is in {key_file}")
    console.print(
        f"fingerprint of the key: {member.key_id} (an admin can compare it with that of 'fleet tracker members')"
    )
