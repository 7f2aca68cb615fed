"""Columns of devices, waiting requests, bookings and jobs: a cell's text and sort key. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.text import Text

from fleet.base.local_time import moment_text
from fleet.base.quantities import age_text, elapsed_text, time_text
from fleet.dashboard import formatting
from fleet.domain.bookings import Booking, booking_id
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.health import HealthState
from fleet.domain.jobs import JobState, JobStatus, share_done, trials_text
from fleet.domain.leases import PendingRequest

T = TypeVar("T")

Cell = str | Text
Key = tuple[float, formatting.NaturalKey]
"""Sort key of rows: numbers by the first part, texts by the second."""

_BAR_COLUMNS = 10

STATES = {
    DeviceState.AVAILABLE: Text("free", "green"),
    DeviceState.LEASED: Text("leased", "cyan"),
    DeviceState.OFFLINE: Text("offline", "yellow"),
    DeviceState.FAULTED: Text("faulted", "bold red"),
}
JOB_STATES = {
    JobState.QUEUED: Text("queued", "dim"),
    JobState.RUNNING: Text("running", "cyan"),
    JobState.FINISHED: Text("finished", "green"),
    JobState.INTERRUPTED: Text("interrupted", "yellow"),
    JobState.FAILED: Text("failed", "bold red"),
    JobState.CANCELLED: Text("cancelled", "yellow"),
}


def state_text(device: DeviceStatus) -> Text:
    """Return the state of a device with the mark of its health."""
    state, mark = STATES[device.state], device.mark.state
    if mark is HealthState.GOOD:
        return state
    if device.state is DeviceState.AVAILABLE and not mark.is_open:
        return Text(mark, "yellow")
    return Text.assemble(state, (f", {mark}", "yellow"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[T]):
    """One column."""

    title: str
    cell: Callable[[T, float], Cell]
    """Text for an item at a time [s since 1970, the tracker's clock]. Text is taken literally."""

    key: Callable[[T], Key | None]
    """Sort key; None if it shows nothing, which goes last."""

    is_number: bool = False
    """Aligned right, never cut, and sorted largest first."""

    takes_rest: bool = False
    """Gets the space that is left, and is cut first."""

    style: str = ""
    from_width: int = 0
    """Shown where the terminal has at least this many columns."""


def _number(value: float | None) -> Key | None:
    return None if value is None else (value, ())


def _text(value: str) -> Key | None:
    return (0.0, formatting.natural_key(value)) if value else None


def _since(at_sec: float | None) -> Key | None:
    """Return a sort key by age."""
    return _number(-at_sec if at_sec else None)


def _note(device: DeviceStatus) -> str:
    mark = str(device.mark) if device.mark.state is not HealthState.GOOD else ""
    return mark or device.reason or _trouble(device.telemetry) or device.telemetry.last_error


def _trouble(telemetry: Telemetry) -> str:
    """Return the conditions that would disturb a measurement now."""
    if telemetry.throttle_reasons:
        return f"throttled: {', '.join(telemetry.throttle_reasons)}"
    if telemetry.foreign_processes:
        return f"used by {telemetry.foreign_processes} foreign process{'es' if telemetry.foreign_processes > 1 else ''}"
    return ""


def _rate(device: DeviceStatus) -> float | None:
    return device.telemetry.trials_per_min if device.telemetry.trials else None


def _format(value: float | None, pattern: str) -> str:
    return "-" if value is None else format(value, pattern)


def _temperature(device: DeviceStatus) -> str:
    temp_c = device.telemetry.temp_c
    return "-" if temp_c is None else f"{temp_c:.0f} °C"


DEVICE_COLUMNS: Sequence[Column[DeviceStatus]] = (
    Column(
        title="device",
        cell=lambda device, _: formatting.short_name(device.name),
        key=lambda device: _text(device.name),
    ),
    Column(
        title="state",
        cell=lambda device, _: state_text(device),
        key=lambda device: _text(state_text(device).plain),
    ),
    Column(title="holder", cell=lambda device, _: device.held_by or "-", key=lambda device: _text(device.held_by)),
    Column(
        title="held",
        cell=lambda device, now_sec: age_text(device.granted_at_sec, now_sec),
        key=lambda device: _since(device.granted_at_sec),
        is_number=True,
        from_width=60,
    ),
    Column(
        title="trials/min",
        cell=lambda device, _: _format(_rate(device), ".0f"),
        key=lambda device: _number(_rate(device)),
        is_number=True,
        from_width=70,
    ),
    Column(
        title="temp",
        cell=lambda device, _: _temperature(device),
        key=lambda device: _number(device.telemetry.temp_c),
        is_number=True,
        from_width=60,
    ),
    Column(
        title="load",
        cell=lambda device, _: _format(device.telemetry.load_1min, ".1f"),
        key=lambda device: _number(device.telemetry.load_1min),
        is_number=True,
        from_width=100,
    ),
    Column(
        title="note",
        cell=lambda device, _: _note(device),
        key=lambda device: _text(_note(device)),
        takes_rest=True,
        style="dim",
        from_width=60,
    ),
)


def _start(request: PendingRequest, now_sec: float) -> str:
    """Return the expected start of a waiting request: "in 12 min"."""
    if request.forecast is None:
        return "-"
    rest_sec = request.forecast.expected_sec - now_sec
    return f"in {elapsed_text(rest_sec)}" if rest_sec >= 1.0 else "soon"


REQUEST_COLUMNS: Sequence[Column[PendingRequest]] = (
    Column(
        title="queue",
        cell=lambda request, _: "next" if request.position == 0 else str(request.position + 1),
        key=lambda request: _number(request.position),
    ),
    Column(title="holder", cell=lambda request, _: request.asked_by, key=lambda request: _text(request.asked_by)),
    Column(
        title="wants", cell=lambda request, _: request.terms.wanted, key=lambda request: _text(request.terms.wanted)
    ),
    Column(
        title="class",
        cell=lambda request, _: request.terms.lease_class.value,
        key=lambda request: _number(request.terms.lease_class.rank),
        from_width=100,
    ),
    Column(
        title="priority",
        cell=lambda request, _: str(request.terms.priority),
        key=lambda request: _number(request.terms.priority),
        is_number=True,
        from_width=120,
    ),
    Column(
        title="waits",
        cell=lambda request, now_sec: age_text(request.asked_at_sec, now_sec),
        key=lambda request: _since(request.asked_at_sec),
        is_number=True,
        from_width=50,
    ),
    Column(
        title="starts",
        cell=_start,
        key=lambda request: _number(-request.forecast.expected_sec if request.forecast else None),
        is_number=True,
        from_width=70,
    ),
    Column(
        title="why",
        cell=lambda request, _: request.reason,
        key=lambda request: _text(request.reason),
        takes_rest=True,
        style="dim",
        from_width=70,
    ),
)


def booking_state(booking: Booking, now_sec: float) -> Text:
    """Return the state of a booking: "kept", "1 of 2 in use" or "cannot be kept"."""
    if booking.missing_count > 0:
        return Text("cannot be kept", "bold red")
    if booking.starts_at_sec > now_sec:
        return Text("kept", "green")
    return Text(f"{booking.leased_count} of {booking.device_count} in use", "cyan")


def booked_devices(booking: Booking) -> str:
    """Return the devices that are planned for a booking, and those that it lacks: "pi4-01, lacks pi4-02"."""
    kept = " ".join(map(formatting.short_name, booking.device_names))
    if booking.missing_count <= 0:
        return kept or "-"
    named = " ".join(map(formatting.short_name, booking.missing_device_names))
    return f"{kept}{', ' if kept else ''}lacks {named or f'{booking.missing_count} of {booking.device_count}'}"


BOOKING_COLUMNS: Sequence[Column[Booking]] = (
    Column(
        title="booking",
        cell=lambda booking, _: booking_id(booking.name),
        key=lambda booking: _text(booking.name),
    ),
    Column(title="by", cell=lambda booking, _: booking.booked_by, key=lambda booking: _text(booking.booked_by)),
    Column(
        title="wants",
        cell=lambda booking, _: booking.wanted,
        key=lambda booking: _text(booking.wanted),
        from_width=100,
    ),
    Column(
        title="from",
        cell=lambda booking, now_sec: moment_text(booking.starts_at_sec, now_sec),
        key=lambda booking: _number(-booking.starts_at_sec),
        is_number=True,
    ),
    Column(
        title="to",
        cell=lambda booking, _: moment_text(booking.ends_at_sec, booking.starts_at_sec),
        key=lambda booking: _number(-booking.ends_at_sec),
        is_number=True,
        from_width=60,
    ),
    Column(
        title="state",
        cell=booking_state,
        key=lambda booking: _number(booking.missing_count),
        from_width=50,
    ),
    Column(
        title="devices",
        cell=lambda booking, _: booked_devices(booking),
        key=lambda booking: _text(booked_devices(booking)),
        takes_rest=True,
    ),
)


def _trials(job: JobStatus) -> str:
    asides = [
        *([f"{job.trials_failed} bad"] if job.trials_failed else []),
        *([f"{job.trials_repeated} again"] if job.trials_repeated else []),
    ]
    aside = f" ({', '.join(asides)})" if asides else ""
    return f"{trials_text(job.trials_done, job.trials_total)}{aside}"


def _speed_up(job: JobStatus) -> float | None:
    return job.untuned_us / job.best_us if job.best_us > 0 and job.untuned_us > 0 else None


def _progress(job: JobStatus) -> Text:
    return _bar(int(_share_done(job) * _BAR_COLUMNS))


def _share_done(job: JobStatus) -> float:
    return max(job.share_done, share_done(job.trials_done, job.trials_total))  # older optimizers report trials only


@functools.cache
def _bar(done: int) -> Text:
    return Text.assemble(("━" * done, "cyan"), ("╌" * (_BAR_COLUMNS - done), "dim"))


JOB_COLUMNS: Sequence[Column[JobStatus]] = (
    Column(
        title="job",
        cell=lambda job, _: job.title or formatting.short_name(job.name),
        key=lambda job: _text(job.title or formatting.short_name(job.name)),
    ),
    Column(
        title="state", cell=lambda job, _: JOB_STATES[job.state], key=lambda job: _text(JOB_STATES[job.state].plain)
    ),
    Column(
        title="progress",
        cell=lambda job, _: _progress(job),
        key=lambda job: _number(_share_done(job)),
        is_number=True,
        from_width=60,
    ),
    Column(
        title="trials",
        cell=lambda job, _: _trials(job),
        key=lambda job: _number(job.trials_done),
        is_number=True,
    ),
    Column(
        title="best",
        cell=lambda job, _: time_text(job.best_us / 1e6 or None, digits=3),
        key=lambda job: _number(job.best_us or None),
        is_number=True,
        from_width=70,
    ),
    Column(
        title="speed-up",
        cell=lambda job, _: _format(_speed_up(job), ".1f") + ("x" if _speed_up(job) is not None else ""),
        key=lambda job: _number(_speed_up(job)),
        is_number=True,
        from_width=70,
    ),
    Column(
        title="left",
        cell=lambda job, _: elapsed_text(job.left.expected_sec) if job.left else "-",
        key=lambda job: _number(job.left.expected_sec if job.left else None),
        is_number=True,
        from_width=141,
    ),
    Column(
        title="to gain",
        cell=lambda job, _: _format(job.rest_share, ".1%"),
        key=lambda job: _number(job.rest_share),
        is_number=True,
        from_width=141,
    ),
    Column(
        title="runs",
        cell=lambda job, now_sec: age_text(job.started_at_sec, now_sec),
        key=lambda job: _since(job.started_at_sec),
        is_number=True,
        from_width=120,
    ),
    Column(
        title="now",
        cell=lambda job, _: job.activity,
        key=lambda job: _text(job.activity),
        takes_rest=True,
        style="dim",
        from_width=70,
    ),
)
