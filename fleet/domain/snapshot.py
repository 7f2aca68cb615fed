"""The whole fleet at one moment, jobs included, for `fleet status` and scripts."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceStatus
from fleet.domain.jobs import JobStatus, OptimizerStatus
from fleet.domain.leases import Lease, PendingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Immutable view of the fleet."""

    version: int = 0
    """Grows with every change of the tracker's state."""

    taken_at_sec: float = 0.0
    devices: tuple[DeviceStatus, ...] = ()
    """Sorted by name."""

    leases: tuple[Lease, ...] = ()
    """The live leases, sorted by name."""

    requests: tuple[PendingRequest, ...] = ()
    """The queue in the order of service, the first 1,000."""

    request_count: int = 0
    """The number of all waiting requests."""

    jobs: tuple[JobStatus, ...] = ()
    """Running ones and those that ended in the last ten minutes, newest first."""

    tracker_version: str = ""
    started_at_sec: float = 0.0
    grant_count: int = 0
    """Grants since the tracker started."""

    bookings: tuple[Booking, ...] = ()
    """Those that have not ended, earliest start first."""

    optimizers: tuple[OptimizerStatus, ...] = ()
    """Connected ones, busy or idle, the first 200 by name; empty: an older tracker, too."""

    def __repr__(self) -> str:
        counts = f"{len(self.devices)} devices, {len(self.leases)} leases, {self.request_count} waiting"
        return f"<Snapshot {self.version}: {counts}, {len(self.jobs)} jobs>"
