"""Content of each page as values, ready for its template. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote

from fleet.base.local_time import moment_text
from fleet.base.quantities import count_text, elapsed_text
from fleet.dashboard.columns import booked_devices, booking_state, state_text
from fleet.dashboard.details import device_facts, job_facts
from fleet.dashboard.explanation import candidate_rows, explanation_facts, omission_lines
from fleet.dashboard.formatting import short_name
from fleet.dashboard.panes import DEVICES, JOBS, QUEUE
from fleet.domain.accounts import account_text
from fleet.domain.bookings import Booking, booking_id
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import Lease
from fleet.domain.snapshot import Snapshot
from fleet.domain.usage import Usage, UsageRow
from fleet.errors import NotFound
from fleet.reports.plot import Panel, Svg, svg_plot
from fleet.web.tables import Datum, Grid, Heading, View, datum, grid_of

WEEKS = 5
"""Weeks with bookings: they start at most 30 days ahead."""
_DAYS = 7


def device_href(name: str) -> str:
    """Return the address of a device's page."""
    return f"/devices/{quote(short_name(name), safe='')}"


def request_href(request_id: str) -> str:
    """Return the address of a request's page."""
    return f"/requests/{quote(request_id, safe='')}"


def job_href(name: str) -> str:
    """Return the address of a job's page."""
    return f"/jobs/{quote(short_name(name), safe='')}"


def fleet_grid(snapshot: Snapshot, view: View, now_sec: float) -> Grid:
    """Return the devices."""
    return grid_of(DEVICES, snapshot.devices, view, now_sec, lambda device: device_href(device.name))


def queue_grid(snapshot: Snapshot, view: View, now_sec: float) -> Grid:
    """Return the waiting requests, with the reasons and the expected starts."""
    total = snapshot.request_count
    return grid_of(QUEUE, snapshot.requests, view, now_sec, lambda one: request_href(one.request_id), total=total)


def jobs_grid(snapshot: Snapshot, view: View, now_sec: float) -> Grid:
    """Return running jobs, and newly ended ones."""
    return grid_of(JOBS, snapshot.jobs, view, now_sec, lambda job: job_href(job.name))


def counts(snapshot: Snapshot) -> Sequence[Datum]:
    """Return the numbers at the top of the fleet's page."""
    found = Counter(device.state for device in snapshot.devices)
    closed = Counter(
        device.mark.state
        for device in snapshot.devices
        if device.state is DeviceState.AVAILABLE and not device.mark.state.is_open
    )
    offline, faulted = found[DeviceState.OFFLINE], found[DeviceState.FAULTED]
    return [
        Datum(f"{found[DeviceState.AVAILABLE] - closed.total()} free", "good"),
        Datum(f"{found[DeviceState.LEASED]} leased", "busy"),
        *([Datum(f"{offline} offline", "warn")] if offline else []),
        *([Datum(f"{faulted} faulted", "bad")] if faulted else []),
        *(Datum(f"{count} {mark}", "warn") for mark, count in closed.items()),
        Datum(f"{snapshot.request_count} waiting", "", "/queue"),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePage:
    """Content of the page of one device."""

    name: str
    href: str
    state: Datum
    facts: Mapping[str, str]
    lease: Lease | None
    is_open: bool
    """True if it serves ordinary requests, so that it may be drained."""


def device_page(snapshot: Snapshot, name: str, now_sec: float) -> DevicePage:
    """Return a device by its short name.

    Raises:
        NotFound: there is none.
    """
    device = find_device(snapshot, name)
    lease = next((lease for lease in snapshot.leases if lease.name == device.lease_name), None)
    return DevicePage(
        name=name,
        href=device_href(name),
        state=datum(state_text(device)),
        facts=device_facts(device, now_sec, lease, snapshot.bookings),
        lease=lease,
        is_open=device.mark.state.is_open,
    )


def find_device(snapshot: Snapshot, name: str) -> DeviceStatus:
    """Return a device by its short name.

    Raises:
        NotFound: there is none.
    """
    for device in snapshot.devices:
        if short_name(device.name) == name:
            return device
    raise NotFound(f"there is no device {name!r}")


_READINGS: Mapping[str, Callable[[Telemetry], float | None]] = {
    "temperature [°C]": lambda sample: sample.temp_c,
    "clock [GHz]": lambda sample: sample.freq_hz and sample.freq_hz / 1e9,
    "load": lambda sample: sample.load_1min,
    "power [W]": lambda sample: sample.power_w,
    "trials per minute": lambda sample: sample.trials_per_min,
}


def history_plots(samples: Sequence[Telemetry]) -> Sequence[tuple[str, Svg]]:
    """Return a plot of each reading that the device has, over its last hour."""
    if len(samples) < 2:
        return []
    ago = f"{elapsed_text(samples[-1].read_at_sec - samples[0].read_at_sec)} ago"
    plots = []
    for title, reading in _READINGS.items():
        if values := _known([reading(sample) for sample in samples]):
            panel = Panel(title=title, curves={title: values}, lines={}, first=ago, last="now", has_steps=False)
            plots.append((title, svg_plot(panel)))
    return plots


def _known(values: Sequence[float | None]) -> list[float]:
    found = [value for value in values if value is not None]
    return found if len(found) > 1 else []


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """A waiting request."""

    href: str
    facts: Mapping[str, str]
    candidates: Grid
    omissions: Sequence[str]


def request_page(found: Explanation) -> RequestPage:
    """Return the reasons why a request waits."""
    rows = [
        [Datum(name, "", device_href(f"devices/{name}")), datum(state), Datum(held)]
        for name, state, held in candidate_rows(found)
    ]
    headings = [Heading("device"), Heading("state"), Heading("holder")]
    title = f"{count_text(found.device_count, 'device')} would do"
    more = max(0, found.device_count - len(rows))
    return RequestPage(
        href=request_href(found.request.request_id),
        facts=explanation_facts(found),
        candidates=Grid(title=title, headings=headings, rows=rows, more=more, empty="none"),
        omissions=omission_lines(found),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """Part of a booking in one day."""

    booking_id: str
    time: str
    wanted: str
    by: str
    devices: str
    state: Datum
    from_hour: float
    to_hour: float
    """Hours since midnight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day of the week."""

    title: str
    is_today: bool
    bookings: Sequence[Booked]


def week(bookings: Sequence[Booking], now_sec: float, number: int) -> Sequence[Day]:
    """Return seven days with their bookings, in local time.

    Args:
        bookings: earliest start first.
        number: 0 begins today, 1 in seven days.
    """
    today = datetime.fromtimestamp(now_sec).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today + timedelta(days=number * _DAYS + at) for at in range(_DAYS)]
    return [
        Day(
            title=f"{day:%a %d %b}",
            is_today=day == today,
            bookings=[found for one in bookings if (found := _in_day(one, day, now_sec)) is not None],
        )
        for day in days
    ]


def _in_day(booking: Booking, day: datetime, now_sec: float) -> Booked | None:
    """Return the part of a booking in a day."""
    begins, ends = day.timestamp(), (day + timedelta(days=1)).timestamp()
    start, end = max(booking.starts_at_sec, begins), min(booking.ends_at_sec, ends)
    if end <= start:
        return None
    return Booked(
        booking_id=booking_id(booking.name),
        time=f"{moment_text(start, start)} to {'24:00' if end == ends else moment_text(end, end)}",
        wanted=f"{booking.device_count} of {booking.wanted}",
        by=booking.booked_by,
        devices=booked_devices(booking),
        state=datum(booking_state(booking, now_sec)),
        from_hour=(start - begins) / 3600,
        to_hour=(end - begins) / 3600,
    )


def usage_grid(usage: Usage) -> Grid:
    """Return the use of the fleet by account."""
    headings = [
        Heading("account"),
        *(Heading(title, True) for title in ("leases", "device time", "share", "mean wait")),
    ]
    rows = [list(map(Datum, _usage_cells(row, usage))) for row in usage.rows]
    return Grid(title="use by account", headings=headings, rows=rows, empty="no lease has ended in this time")


def _usage_cells(row: UsageRow, usage: Usage) -> Sequence[str]:
    wait = "-" if row.wait_sec is None else elapsed_text(row.wait_sec)
    return account_name(row), str(row.lease_count), elapsed_text(row.device_sec), f"{usage.share(row):.1%}", wait


def account_name(row: UsageRow) -> str:
    """Return the name of an account: that of its latest holder, if it has only a key."""
    account = account_text(row.key)
    return row.holder if account != row.key or not account else account


def job_status(snapshot: Snapshot, name: str) -> JobStatus | None:
    """Return the tracker's status of a job by its short name."""
    return next((job for job in snapshot.jobs if short_name(job.name) == name), None)


def status_facts(job: JobStatus | None, now_sec: float) -> Mapping[str, str]:
    """Return the tracker's facts about a job, if it has any."""
    return job_facts(job, now_sec) if job else {}
