"""Details of a device, a waiting request, a booking or a job. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fleet.base.local_time import span_text
from fleet.base.quantities import age_text, count_text, elapsed_text, size_text, time_text
from fleet.dashboard import formatting
from fleet.dashboard.columns import JOB_STATES, STATES, booked_devices, booking_state, state_text
from fleet.dashboard.explanation import facts_table
from fleet.dashboard.panes import by_name
from fleet.domain.bookings import Booking, booking_id
from fleet.domain.devices import DeviceState, DeviceStatus, Telemetry
from fleet.domain.inventory_labels import automatic_labels
from fleet.domain.jobs import JobStatus, trials_text
from fleet.domain.leases import Lease, PendingRequest
from fleet.domain.selectors import labels_of, parse_selector
from fleet.domain.snapshot import Snapshot
from fleet.domain.waits import forecast_text
from fleet.errors import InvalidRequest

_MOST_BOOKINGS = 3
"""Bookings that are listed for a device."""
_MOST_LISTED = 50
"""Devices that are listed under a request."""


def device_details(
    device: DeviceStatus, now_sec: float, lease: Lease | None = None, bookings: Sequence[Booking] = ()
) -> Table:
    """Return the facts about a device as a table; see `device_facts`."""
    return facts_table(device_facts(device, now_sec, lease, bookings))


def device_facts(
    device: DeviceStatus, now_sec: float, lease: Lease | None = None, bookings: Sequence[Booking] = ()
) -> dict[str, str]:
    """Return the known facts about a device by their names, without its history.

    Args:
        bookings: all of the fleet, earliest start first.
    """
    inventory, telemetry = device.inventory, device.telemetry
    holder = f"{device.held_by} ({device.lease_name}, for {age_text(device.granted_at_sec, now_sec)})"
    return {
        "name": device.name,
        "state": STATES[device.state].plain + (f": {device.reason}" if device.reason else ""),
        **_health_facts(device, now_sec),
        "holder": holder if device.lease_name else "-",
        **(_lease_facts(lease, now_sec) if lease else {}),
        **_booking_facts(device.name, bookings, now_sec),
        "address": device.address,
        **({"relay": device.relay_address} if device.relay_address else {}),
        "attached": f"{age_text(device.attached_at_sec, now_sec)} ago",
        "kind": inventory.kind + (" (simulated)" if inventory.is_simulated else ""),
        "model": inventory.device_model or "-",
        "target": inventory.target_json or "-",
        "cores": str(inventory.core_count or "-"),
        "memory": size_text(inventory.memory_bytes),
        "tvm": inventory.tvm_version or "-",
        "labels": ", ".join(f"{key}={value}" for key, value in sorted(automatic_labels(inventory).items())) or "-",
        **({"bitstream": device.bitstream_digest} if device.bitstream_digest else {}),
        "trials": f"{telemetry.trials} ({telemetry.trials_per_min:.0f} per minute)",
        **_readings(telemetry),
        "last error": telemetry.last_error or "-",
        **{f"fact {key}": inventory.facts[key] for key in sorted(inventory.facts)},
    }


def request_details(request: PendingRequest, snapshot: Snapshot, now_sec: float) -> RenderableType:
    """Return the known facts about a waiting request, and the states of suitable devices."""
    facts = facts_table(
        {
            "request": request.request_id,
            "holder": request.asked_by,
            "wants": request.terms.wanted,
            "place": "next" if request.position == 0 else f"{request.position} are served before it",
            "class": request.terms.lease_class.value,
            "priority": str(request.terms.priority),
            "waits": age_text(request.asked_at_sec, now_sec),
            "starts": forecast_text(request.forecast, now_sec, request.wait),
            "why": request.reason or "-",
            "purpose": request.terms.purpose or "-",
        }
    )
    return Group(facts, Text(), _candidates(request, snapshot, now_sec))


def booking_details(booking: Booking, now_sec: float) -> Table:
    """Return the known facts about a booking."""
    return facts_table(
        {
            "booking": booking_id(booking.name),
            "holder": booking.booked_by or "-",
            "wants": f"{booking.device_count} of {booking.wanted}",
            "time": _time_text(booking, now_sec),
            "state": booking_state(booking, now_sec).plain,
            "devices": booked_devices(booking),
            "booked": f"{age_text(booking.booked_at_sec, now_sec)} ago",
        }
    )


def job_details(job: JobStatus, now_sec: float) -> Table:
    """Return the tracker's facts about a job as a table; the library has more."""
    return facts_table(job_facts(job, now_sec))


def job_facts(job: JobStatus, now_sec: float) -> dict[str, str]:
    """Return the tracker's facts about a job by their names."""
    return {
        "job": job.name,
        "title": job.title or "-",
        "state": JOB_STATES[job.state].plain,
        "holder": job.held_by or "-",
        "started": f"{age_text(job.started_at_sec, now_sec)} ago" if job.started_at_sec else "-",
        "trials": f"{trials_text(job.trials_done, job.trials_total)}, {job.trials_failed} failed, "
        f"{job.trials_repeated} repeated",
        "latency": ", untuned ".join(time_text(us / 1e6 or None, digits=3) for us in (job.best_us, job.untuned_us)),
        "workloads": str(job.workload_count or "-"),
        "now": job.activity or "-",
        **_rest_facts(job),
        **_optimizer_facts(job),
        "why": job.decision or "-",
    }


def _rest_facts(job: JobStatus) -> dict[str, str]:
    """Return the remaining time of a search and the gain of its rest, as far as they are known."""
    parts = [str(job.left)] if job.left else []
    parts += [f"its next tenth should gain {job.rest_share:.1%}"] if job.rest_share is not None else []
    return {"left": ", ".join(parts)} if parts else {}


def _optimizer_facts(job: JobStatus) -> dict[str, str]:
    builders = f", {count_text(job.builder_count, 'builder')}" if job.builder_count else ""
    return {"optimizer": f"{job.optimizer}{builders}"} if job.optimizer else {}


def _health_facts(device: DeviceStatus, now_sec: float) -> dict[str, str]:
    mark = device.mark
    if not mark.at_sec:
        return {}
    until = "" if mark.until_sec is None else f"; leases end in {elapsed_text(mark.until_sec - now_sec)} at the latest"
    return {"health": f"{mark} ({age_text(mark.at_sec, now_sec)} ago){until}"}


def _lease_facts(lease: Lease, now_sec: float) -> dict[str, str]:
    return {
        "lease": f"renews within {elapsed_text(lease.expires_at_sec - now_sec)}, "
        f"ends in {elapsed_text(lease.ends_at_sec - now_sec)} at the latest",
        "purpose": lease.purpose or "-",
    }


def _booking_facts(device_name: str, bookings: Sequence[Booking], now_sec: float) -> dict[str, str]:
    """Return the current and next bookings of a device."""
    lines = []
    for booking in bookings:
        is_missing = device_name in booking.missing_device_names
        if is_missing or device_name in booking.device_names:
            note = "; it lacks this device" if is_missing else ""
            who = f" by {booking.booked_by}" if booking.booked_by else ""
            lines.append(f"{_time_text(booking, now_sec)}{who} ({booking_id(booking.name)}){note}")
    more = [f"and {len(lines) - _MOST_BOOKINGS} more"] if len(lines) > _MOST_BOOKINGS else []
    return {"booked": "\n".join(lines[:_MOST_BOOKINGS] + more)} if lines else {}


def _time_text(booking: Booking, now_sec: float) -> str:
    """Return the time of a booking: "14:00 to 16:00, in 2 h 05 min"."""
    starts_in_sec = booking.starts_at_sec - now_sec
    when = f"in {elapsed_text(starts_in_sec)}" if starts_in_sec > 0 else "now"
    return f"{span_text(booking.starts_at_sec, booking.ends_at_sec, now_sec)}, {when}"


def _candidates(request: PendingRequest, snapshot: Snapshot, now_sec: float) -> RenderableType:
    try:
        selector = parse_selector(request.terms.selector)
    except InvalidRequest:  # a newer tracker's language
        return Text()
    would_do = by_name([device for device in snapshot.devices if selector.matches(labels_of(device))])
    table = Table(box=None, pad_edge=False, show_header=False)
    for device in would_do[:_MOST_LISTED]:
        is_held = device.state is DeviceState.LEASED
        held = f"{device.held_by} for {age_text(device.granted_at_sec, now_sec)}" if is_held else device.reason
        table.add_row(Text(formatting.short_name(device.name)), state_text(device), Text(held))
    head = Text(f"{len(would_do)} of {len(snapshot.devices)} devices would do", "bold")
    hidden = len(would_do) - _MOST_LISTED
    more = [Text(f"and {hidden} more", "dim")] if hidden > 0 else []
    return Group(head, *([table] if would_do else []), *more)


def _readings(telemetry: Telemetry) -> dict[str, str]:
    """Return the current readings."""
    known = {
        "temperature": f"{telemetry.temp_c:.0f} °C" if telemetry.temp_c is not None else "",
        "clock": f"{telemetry.freq_hz / 1e9:.2f} GHz" if telemetry.freq_hz is not None else "",
        "governor": telemetry.governor or "",
        "power": f"{telemetry.power_w:.1f} W" if telemetry.power_w is not None else "",
        "battery": f"{telemetry.battery_percent:.0f} %" if telemetry.battery_percent is not None else "",
        "throttled": ", ".join(telemetry.throttle_reasons),
        "foreign processes": str(telemetry.foreign_processes) if telemetry.foreign_processes else "",
        "reference kernel": time_text(telemetry.reference_sec, digits=3) if telemetry.reference_sec is not None else "",
    }
    return {key: text for key, text in known.items() if text}
