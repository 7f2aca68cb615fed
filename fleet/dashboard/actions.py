"""Actions on a device, a waiting request, a booking or a job, and their confirmations. Pure.

Whether somebody may do it, the tracker decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.dashboard import formatting
from fleet.domain.bookings import Booking, booking_id
from fleet.domain.devices import DeviceStatus
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.leases import PendingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoke:
    """End a lease against its holder's will."""

    lease_name: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """Cancel a waiting request."""

    request_id: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelBooking:
    """Cancel a booking."""

    booking_name: str
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Stop a job."""

    job_name: str
    question: str


Action = Revoke | CancelRequest | CancelBooking | CancelJob


def action_for_device(device: DeviceStatus) -> Revoke | None:
    """Return the action on a device: revoke its lease, if it has one."""
    if not device.lease_name:
        return None
    return Revoke(
        lease_name=device.lease_name,
        question=f"Take {formatting.short_name(device.name)} from {device.held_by or 'its holder'}? "
        "The session ends at once, and its programs are killed.",
    )


def action_for_request(request: PendingRequest) -> CancelRequest:
    """Return the action on a request: cancel it."""
    return CancelRequest(
        request_id=request.request_id,
        question=f"Take the request of {request.asked_by or 'somebody'} for {request.terms.wanted} out of the queue? "
        "Whoever waits for it is told.",
    )


def action_for_booking(booking: Booking) -> CancelBooking:
    """Return the action on a booking: cancel it."""
    return CancelBooking(
        booking_name=booking.name,
        question=f"Cancel the booking {booking_id(booking.name)} of {booking.booked_by or 'somebody'} for "
        f"{booking.wanted}? Leases on its devices go on.",
    )


def action_for_job(job: JobStatus) -> CancelJob | None:
    """Return the action on a job: cancel it, unless it has ended."""
    if job.state not in (JobState.QUEUED, JobState.RUNNING, JobState.INTERRUPTED):
        return None
    return CancelJob(
        job_name=job.name,
        question=f"Stop {job.title or formatting.short_name(job.name)}? Its records stay, and it can be resumed.",
    )
