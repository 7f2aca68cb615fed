"""Tickets to put artifacts for a session, without the lease's token: for builders on another machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease
from fleet.errors import FleetError


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTicket:
    """Lets `Device(ticket, proof, header=TICKET_HEADER)` put artifacts, while the session lives that made it."""

    device: DeviceStatus
    lease: Lease
    token: bytes = field(repr=False)
    """A secret of the agent's."""
    authority_pem: bytes = field(default=b"", repr=False)
    """Of the agent's fleet: the uploader presents its own credentials for that. Empty without TLS."""

    @property
    def ended(self) -> FleetError | None:
        """None: the agent says when it is over."""
        return None

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Nothing is heard of the lease here."""
