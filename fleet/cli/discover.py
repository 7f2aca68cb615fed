"""`fleet discover`: trackers and agents of the local network."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fleet.cli import options
from fleet.cli.tables import make_console

if TYPE_CHECKING:
    from fleet.wire.discovery import FoundService

_USUAL_SEC, _MAX_SEC = 3.0, 60.0


class Standing(StrEnum):
    """Relation of a found process to the fleets of this account."""

    JOINED = "joined"
    PENDING = "asks to join"
    UNJOINED = "in no fleet"
    OTHER = "another fleet"


def discover(
    seconds: Annotated[
        float, typer.Option("--for", min=0.5, max=_MAX_SEC, metavar="SEC", help="Time to wait for answers.")
    ] = _USUAL_SEC,
    json_output: options.JsonOption = False,
) -> None:
    """List the trackers and agents that advertise themselves on this network by zeroconf.

    The list shows their own claims, unchecked: a certificate is checked when a connection is made. An agent that asks
    to join is approved with 'fleet agent approve'.

    Example: fleet discover
    """
    from fleet.wire.discovery import discover as look  # slow to import

    if not json_output:
        options.stderr().print(f"looking for {seconds:g} s")
    own = _own_fleets()
    found = [(service, standing(service, own)) for service in options.run(look(seconds))]
    if json_output:
        options.print_json({"services": [_as_data(service, state) for service, state in found]})
        return
    table = Table("kind", "name", "addresses", "fleet", "state", box=None, pad_edge=False, header_style="dim")
    for service, state in found:
        cells = (service.kind.name.lower(), service.name, "\n".join(service.addresses), service.facts.fleet, state)
        table.add_row(*map(Text, cells))
    make_console(is_wide=False).print(table if found else "nothing advertises itself on this network")


def standing(service: FoundService, own_fleets: Container[str]) -> Standing:
    """Return the relation of a found process to the fleets of this account, by its own claim."""
    if service.facts.is_asking:
        return Standing.PENDING
    if not service.facts.fleet:
        return Standing.UNJOINED
    return Standing.JOINED if service.facts.fleet in own_fleets else Standing.OTHER


def _own_fleets() -> frozenset[str]:
    from fleet.identity.certificates import pin_of
    from fleet.identity.store import CredentialStore
    from fleet.wire.discovery import fleet_id

    return frozenset(fleet_id(pin_of(known.authority_pem)) for known in CredentialStore().all())


def _as_data(service: FoundService, state: Standing) -> dict[str, object]:
    return {
        "kind": service.kind.name.lower(),
        "name": service.name,
        "addresses": list(service.addresses),
        **asdict(service.facts),
        "state": state.name.lower(),
    }
