"""Rows of the panes: a device, a waiting request, a booking or a job of a snapshot. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType

from fleet.dashboard.actions import Action, action_for_booking, action_for_device, action_for_job, action_for_request
from fleet.dashboard.details import booking_details, device_details, job_details, request_details
from fleet.dashboard.panes import BOOKINGS, DEVICES, JOBS, QUEUE, Choice
from fleet.dashboard.sheet import Sheet, make_sheet
from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceStatus
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import PendingRequest
from fleet.domain.snapshot import Snapshot

Selected = DeviceStatus | PendingRequest | Booking | JobStatus

PANES = (DEVICES.title, QUEUE.title, BOOKINGS.title, JOBS.title)
"""From above."""


def make_sheets(
    snapshot: Snapshot, choices: Mapping[str, Choice], now_sec: float, *, width: int, address: str
) -> dict[str, Sheet]:
    """Return the content of each pane."""
    devices, requests, jobs = snapshot.devices, snapshot.requests, snapshot.jobs
    bookings, choice = snapshot.bookings, choices[BOOKINGS.title]
    return {
        DEVICES.title: make_sheet(
            DEVICES, devices, choices[DEVICES.title], now_sec, width=width, total=len(devices), address=address
        ),
        QUEUE.title: make_sheet(
            QUEUE, requests, choices[QUEUE.title], now_sec, width=width, total=snapshot.request_count, address=address
        ),
        BOOKINGS.title: make_sheet(
            BOOKINGS, bookings, choice, now_sec, width=width, total=len(bookings), address=address
        ),
        JOBS.title: make_sheet(JOBS, jobs, choices[JOBS.title], now_sec, width=width, total=len(jobs), address=address),
    }


def shown_panes(snapshot: Snapshot | None) -> list[str]:
    """Return the panes on the screen: bookings only while there are any."""
    is_booked = snapshot is not None and bool(snapshot.bookings)
    return [pane for pane in PANES if is_booked or pane != BOOKINGS.title]


def find(snapshot: Snapshot, pane: str, name: str) -> Selected | None:
    """Return the item of a pane's row, or None if it is gone."""
    if pane == DEVICES.title:
        return next((device for device in snapshot.devices if DEVICES.name(device) == name), None)
    if pane == QUEUE.title:
        return next((request for request in snapshot.requests if QUEUE.name(request) == name), None)
    if pane == BOOKINGS.title:
        return next((booking for booking in snapshot.bookings if BOOKINGS.name(booking) == name), None)
    return next((job for job in snapshot.jobs if JOBS.name(job) == name), None)


def action_for(item: Selected | None) -> Action | None:
    """Return the action on an item."""
    if isinstance(item, DeviceStatus):
        return action_for_device(item)
    if isinstance(item, PendingRequest):
        return action_for_request(item)
    if isinstance(item, Booking):
        return action_for_booking(item)
    return action_for_job(item) if item is not None else None


def details_of(item: Selected, snapshot: Snapshot, now_sec: float) -> RenderableType:
    """Return a snapshot's facts about an item."""
    if isinstance(item, DeviceStatus):
        lease = next((lease for lease in snapshot.leases if lease.name == item.lease_name), None)
        return device_details(item, now_sec, lease, snapshot.bookings)
    if isinstance(item, Booking):
        return booking_details(item, now_sec)
    if isinstance(item, JobStatus):
        return job_details(item, now_sec)
    return request_details(item, snapshot, now_sec)
