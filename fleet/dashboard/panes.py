"""Devices, queue, bookings and jobs as panes: filtering and order of rows. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fleet.dashboard import formatting
from fleet.dashboard.columns import (
    BOOKING_COLUMNS,
    DEVICE_COLUMNS,
    JOB_COLUMNS,
    JOB_STATES,
    REQUEST_COLUMNS,
    STATES,
    Column,
)
from fleet.domain.bookings import Booking, booking_id
from fleet.domain.devices import DeviceStatus
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import PendingRequest
from fleet.domain.selectors import ANY, Selector, labels_of, parse_selector
from fleet.errors import InvalidRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pane(Generic[T]):
    """Content of a pane."""

    title: str
    columns: Sequence[Column[T]]
    name: Callable[[T], str]
    """Key that identifies a row while it exists."""

    labels: Callable[[T], Mapping[str, str]]
    """Labels for the filter's selector."""

    order: Callable[[Sequence[T]], Sequence[T]] = tuple
    """Default order of the rows."""

    empty: str
    """Text of a pane without rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Filter and order of a pane."""

    selector: Selector = ANY
    sort_by: str = ""
    """The title of a column; empty: the pane's own order."""

    is_turned: bool = False
    """The other way round than the column sorts by itself."""


def arrange(pane: Pane[T], items: Sequence[T], choice: Choice) -> list[T]:
    """Return the filtered rows, in order. Rows without a value go last in both orders."""
    found = [item for item in pane.order(items) if choice.selector == ANY or _matches(pane, item, choice.selector)]
    column = next((column for column in pane.columns if column.title == choice.sort_by), None)
    if column is None:
        return found[::-1] if choice.is_turned else found
    keys = [(column.key(item), item) for item in found]
    known = [(key, item) for key, item in keys if key is not None]
    known.sort(key=lambda pair: pair[0], reverse=column.is_number is not choice.is_turned)
    return [item for _, item in known] + [item for key, item in keys if key is None]


def parse_filter(text: str) -> Selector:
    """Read a filter: a selector, or nothing for everything.

    Raises:
        InvalidRequest: it is no selector.
    """
    return parse_selector(text) if text.strip() else ANY


def _matches(pane: Pane[T], item: T, selector: Selector) -> bool:
    return selector.matches(pane.labels(item))


def _device_labels(device: DeviceStatus) -> dict[str, str]:
    """Return the labels as for `fleet devices SELECTOR`, and the device's state."""
    return {"state": STATES[device.state].plain, "holder": device.holder, **labels_of(device)}


def _request_labels(request: PendingRequest) -> dict[str, str]:
    """Return the waiting holder, and the requested kind."""
    try:
        kind = parse_selector(request.terms.selector).kind
    except InvalidRequest:  # the selector syntax of a newer tracker
        kind = None
    return {"holder": request.holder, "purpose": request.terms.purpose, **({"kind": kind} if kind else {})}


def _booking_labels(booking: Booking) -> dict[str, str]:
    """Return the id and the author of a booking, and its account if it has one."""
    account = {"account": booking.account} if booking.account else {}
    return {"name": booking_id(booking.name), "holder": booking.holder, **account}


def _job_labels(job: JobStatus) -> dict[str, str]:
    return {
        "name": formatting.short_name(job.name),
        "title": job.title,
        "holder": job.holder,
        "state": JOB_STATES[job.state].plain,
    }


def by_name(devices: Sequence[DeviceStatus]) -> list[DeviceStatus]:
    """Sort devices by name in natural order."""
    return sorted(devices, key=lambda device: formatting.natural_key(device.name))


DEVICES = Pane(
    title="devices",
    columns=DEVICE_COLUMNS,
    name=lambda device: device.name,
    labels=_device_labels,
    order=by_name,
    empty="no devices yet; attach one with: fleet agent serve --tracker {address}",
)
QUEUE = Pane(
    title="queue",
    columns=REQUEST_COLUMNS,
    name=lambda request: f"{request.holder} {request.request_id}",
    labels=_request_labels,
    empty="nobody waits",
)
BOOKINGS = Pane(
    title="bookings",
    columns=BOOKING_COLUMNS,
    name=lambda booking: booking.name,
    labels=_booking_labels,
    empty="nothing is booked",
)
JOBS = Pane(
    title="jobs",
    columns=JOB_COLUMNS,
    name=lambda job: f"{job.holder} {job.name}",
    labels=_job_labels,
    empty="no job runs",
)
