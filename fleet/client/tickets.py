"""Upload tickets of a session, usable without the lease's token: for builders on another machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.domain.devices import DeviceStatus
from fleet.domain.leases import Lease, YieldWanted
from fleet.errors import FleetError


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTicket:
    """Lets `Device(ticket, proof, header=TICKET_HEADER)` upload artifacts, while the issuing session lives."""

    device: DeviceStatus
    lease: Lease
    token: bytes = field(repr=False)
    """A secret of the agent's."""
    authority_pem: bytes = field(default=b"", repr=False)
    """Authority of the agent's fleet, which selects the uploader's credentials. Empty without TLS."""

    @property
    def ended(self) -> FleetError | None:
        """None: only the agent knows when the session ends."""
        return None

    @property
    def yield_wanted(self) -> YieldWanted | None:
        """None: no news of the lease arrives here."""
        return None

    @property
    def outbid(self) -> float:
        """0: the tracker tells bids to the process with the lease only."""
        return 0.0

    def watch_yield(self, on_yield: Callable[[], None]) -> None:
        """Do nothing: see `yield_wanted`."""

    def watch(self, *, on_end: Callable[[], None], on_renew: Callable[[], None]) -> None:
        """Do nothing: no news of the lease arrives here."""
