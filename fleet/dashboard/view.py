"""Renders a snapshot of the fleet. Pure: the same snapshot and time give the same picture."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fleet.dashboard import words
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.jobs import JobState, JobStatus
from fleet.domain.leases import PendingRequest
from fleet.domain.snapshot import Snapshot

_NARROW = 100
"""Below this width [columns], less important columns are left out."""

_WIDE = 120

_SHOWN_REQUESTS = 15
_SHOWN_JOBS = 8

_STATES = {
    DeviceState.AVAILABLE: ("free", "green"),
    DeviceState.LEASED: ("leased", "cyan"),
    DeviceState.OFFLINE: ("offline", "yellow"),
    DeviceState.FAULTED: ("faulted", "bold red"),
}
_JOB_STATES = {
    JobState.QUEUED: ("queued", "dim"),
    JobState.RUNNING: ("running", "cyan"),
    JobState.FINISHED: ("finished", "green"),
    JobState.INTERRUPTED: ("interrupted", "yellow"),
    JobState.FAILED: ("failed", "bold red"),
    JobState.CANCELLED: ("cancelled", "yellow"),
}


def render(
    snapshot: Snapshot,
    now_sec: float,
    *,
    address: str = "",
    width: int = 100,
    away_sec: float | None = None,
) -> RenderableType:
    """Return the dashboard.

    Args:
        now_sec: the tracker's clock at this moment.
        address: the tracker's, for the header.
        width: available columns; all that matters fits into 80.
        away_sec: for how long the tracker has not answered; None while it does.
    """
    parts: list[RenderableType] = [header(snapshot, now_sec, address)]
    if away_sec is not None:
        parts.append(Text(f"tracker away since {words.duration(away_sec)}, trying again", style="bold red"))
    parts += [Text(), devices_table(snapshot, now_sec, width=width, address=address)]
    if snapshot.requests:
        parts += [Text(), requests_table(snapshot, now_sec, width=width)]
    if snapshot.jobs:
        parts += [Text(), jobs_table(snapshot, now_sec, width=width)]
    return Group(*parts)


def header(snapshot: Snapshot, now_sec: float, address: str) -> Text:
    """Return the line about the tracker."""
    busy = sum(device.state == DeviceState.LEASED for device in snapshot.devices)
    words_ = [
        f"tracker {address}".strip(),
        snapshot.tracker_version or "version ?",
        f"up {words.age(snapshot.started_at_sec, now_sec)}",
        f"{snapshot.grant_count} grants",
        f"{busy}/{len(snapshot.devices)} leased",
        f"{snapshot.request_count} waiting",
    ]
    return Text(" · ".join(words_), style="bold")


def devices_table(snapshot: Snapshot, now_sec: float, *, width: int, address: str = "") -> RenderableType:
    """Return the devices, with their holders and states."""
    if not snapshot.devices:
        return Text(f"no devices yet; attach one with: fleet agent serve --tracker {address or 'HOST:PORT'}")
    table = _table("device", "state", "holder")
    table.add_column("held", justify="right", no_wrap=True)
    table.add_column("trials/min", justify="right", no_wrap=True)
    table.add_column("temp", justify="right", no_wrap=True)
    if width >= _NARROW:
        table.add_column("load", justify="right", no_wrap=True)
    table.add_column("note", overflow="ellipsis", no_wrap=True, ratio=1)
    for device in sorted(snapshot.devices, key=lambda one: words.natural_key(one.name)):
        table.add_row(*_plain(_device_row(device, now_sec, width=width)))
    return table


def requests_table(snapshot: Snapshot, now_sec: float, *, width: int) -> RenderableType:
    """Return the head of the queue."""
    table = _table("queue", "holder", "wants")
    if width >= _NARROW:
        table.add_column("priority", justify="right", no_wrap=True)
    table.add_column("waits", justify="right", no_wrap=True)
    table.add_column("why", overflow="ellipsis", no_wrap=True, ratio=1)
    for request in snapshot.requests[:_SHOWN_REQUESTS]:
        table.add_row(*_plain(_request_row(request, now_sec, width=width)))
    hidden = snapshot.request_count - min(len(snapshot.requests), _SHOWN_REQUESTS)
    return Group(table, Text(f"and {hidden} more", style="dim")) if hidden > 0 else table


def jobs_table(snapshot: Snapshot, now_sec: float, *, width: int) -> RenderableType:
    """Return the running jobs and those that ended lately."""
    table = _table("job", "state")
    table.add_column("progress", no_wrap=True, width=_bar_width(width))
    table.add_column("trials", justify="right", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("speed-up", justify="right", no_wrap=True)
    if width >= _WIDE:
        table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("now", overflow="ellipsis", no_wrap=True, ratio=1)
    for job in snapshot.jobs[:_SHOWN_JOBS]:
        table.add_row(*_plain(_job_row(job, now_sec, width=width)))
    return table


def device_state(device: DeviceStatus) -> Text:
    """Return a device's state in a word."""
    return Text(*_STATES[device.state])


def _bar_width(width: int) -> int:
    return 14 if width >= _NARROW else 8


def _table(*columns: str) -> Table:
    table = Table(box=None, expand=True, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="ellipsis", no_wrap=True)
    return table


def _plain(cells: list[RenderableType]) -> list[RenderableType]:
    """Take cells literally: names and reasons come from others, and brackets in them are not markup."""
    return [Text(cell) if isinstance(cell, str) else cell for cell in cells]


def _device_row(device: DeviceStatus, now_sec: float, *, width: int) -> list[RenderableType]:
    telemetry = device.telemetry
    temp = f"{telemetry.temp_c:.0f} °C" if telemetry.temp_c is not None else "-"
    load = f"{telemetry.load_1min:.1f}" if telemetry.load_1min is not None else "-"
    rate = f"{telemetry.trials_per_min:.0f}" if telemetry.trials else "-"
    return [
        words.short_name(device.name),
        device_state(device),
        device.holder or "-",
        words.age(device.granted_at_sec, now_sec),
        rate,
        temp,
        *([load] if width >= _NARROW else []),
        Text(device.reason or _trouble(telemetry) or telemetry.last_error or "", style="dim"),
    ]


def _trouble(telemetry: Telemetry) -> str:
    """Say what would disturb a measurement now."""
    if telemetry.throttle_reasons:
        return f"throttled: {', '.join(telemetry.throttle_reasons)}"
    if telemetry.foreign_processes:
        return f"used by {telemetry.foreign_processes} foreign process{'es' if telemetry.foreign_processes > 1 else ''}"
    return ""


def _request_row(request: PendingRequest, now_sec: float, *, width: int) -> list[RenderableType]:
    return [
        "next" if request.position == 0 else str(request.position + 1),
        request.holder,
        request.selector,
        *([str(request.priority)] if width >= _NARROW else []),
        words.age(request.asked_at_sec, now_sec),
        Text(request.reason, style="dim"),
    ]


def _job_row(job: JobStatus, now_sec: float, *, width: int) -> list[RenderableType]:
    asides = [
        *([f"{job.trials_failed} bad"] if job.trials_failed else []),
        *([f"{job.trials_repeated} again"] if job.trials_repeated else []),
    ]
    aside = f" ({', '.join(asides)})" if asides else ""
    speed_up = f"{job.untuned_us / job.best_us:.1f}x" if job.best_us > 0 and job.untuned_us > 0 else "-"
    runs = words.age(job.started_at_sec, now_sec)
    return [
        job.title or words.short_name(job.name),
        Text(*_JOB_STATES[job.state]),
        ProgressBar(total=max(job.trials_total, 1), completed=job.trials_done, width=_bar_width(width)),
        f"{job.trials_done}/{job.trials_total}{aside}",
        words.latency(job.best_us),
        speed_up,
        *([runs] if width >= _WIDE else []),
        Text(job.activity, style="dim"),
    ]
