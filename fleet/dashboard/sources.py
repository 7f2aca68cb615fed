"""Data sources of the dashboard."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from rich.console import RenderableType

from fleet.domain.bookings import Booking
from fleet.domain.devices import Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.leases import Lease, PendingRequest
from fleet.domain.snapshot import Snapshot


class SnapshotSource(Protocol):
    """A client of the tracker; `fleet.aio.Fleet` is one."""

    address: str
    holder: str

    @property
    def is_connected(self) -> bool: ...
    def watch(self, min_interval_sec: float = 1.0) -> AsyncGenerator[Snapshot, None]: ...
    async def history(self, device_name: str) -> list[Telemetry]: ...
    async def explain_request(self, request_id: str) -> Explanation: ...
    async def revoke(self, lease_name: str, reason: str = "") -> Lease: ...
    async def cancel_request(self, request_id: str, reason: str = "") -> PendingRequest: ...
    async def cancel_booking(self, name: str) -> Booking: ...
    def watch_bookings(self, on_change: Callable[[Booking], object]) -> None: ...


class JobSource(Protocol):
    """Facts about jobs beyond the tracker's. Calls block."""

    def look(self, job_name: str, width: int) -> RenderableType:
        """Return the progress of a job.

        Raises:
            FleetError: it is not known here.
        """
        ...

    def cancel(self, job_name: str) -> str:
        """Stop a job; return a message about the result.

        Raises:
            FleetError: it cannot be stopped from here.
        """
        ...
