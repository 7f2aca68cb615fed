"""Views of a fleet (tables, charts and JSON) that show arbitrary texts from agents and clients."""

from __future__ import annotations

import io
import json

from google.protobuf.message import DecodeError
from rich.console import Console

from fleet.cli.json_out import in_seconds
from fleet.dashboard.chart import render_history
from fleet.dashboard.details import booking_details, device_details, job_details, request_details
from fleet.dashboard.view import render
from fleet.domain.jobs import JobStatus
from fleet.domain.leases import LeaseTerms, PendingRequest
from fleet.v1 import device_pb2, fleet_service_pb2
from fleet.wire.json_shape import snapshot_json
from fleet.wire.messages_json import message_json
from fleet.wire.sanitize import sanitize_message
from fleet.wire.snapshots import snapshot_from_proto, snapshot_to_proto
from tests.fuzz.target import Target, no_loop
from tests.fuzz.targets.answers import SNAPSHOT

_NOW_SEC = 1_700_000_000.0
_MOST_THINGS = 20
_WIDTH = 100


def _show(content: bytes) -> None:
    try:
        message = fleet_service_pb2.Snapshot.FromString(content)
    except DecodeError:
        return
    shown = (message.devices, message.requests, message.jobs, message.leases, message.bookings)
    if sum(map(len, shown)) > _MOST_THINGS:
        return  # rich takes a millisecond per line
    sanitize_message(message)
    json.dumps(in_seconds(message_json(message)), allow_nan=False)
    snapshot = snapshot_from_proto(message)
    json.dumps(in_seconds(snapshot_json(snapshot)), allow_nan=False)
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    console.print(render(snapshot, _NOW_SEC, width=_WIDTH))
    for device in snapshot.devices:
        console.print(device_details(device, _NOW_SEC, bookings=snapshot.bookings))
    for booking in snapshot.bookings:
        console.print(booking_details(booking, _NOW_SEC))
    for request in snapshot.requests:
        console.print(request_details(request, snapshot, _NOW_SEC))
    for job in snapshot.jobs:
        console.print(job_details(job, _NOW_SEC))
    readings = [device.telemetry for device in snapshot.devices]
    console.print(render_history(readings, _NOW_SEC, width=_WIDTH))


def _snapshots() -> list[bytes]:
    request = PendingRequest(request_id="r", holder="me", terms=LeaseTerms(selector="cpu"), asked_at_sec=1.0)
    job = JobStatus(name="jobs/1", title="t", holder="me", started_at_sec=1.0, trials_total=3)
    message = snapshot_to_proto(SNAPSHOT)
    message.MergeFrom(snapshot_to_proto(type(SNAPSHOT)(version=1, taken_at_sec=1.0, requests=(request,), jobs=(job,))))
    beyond = fleet_service_pb2.Snapshot()
    device = beyond.devices.add(name="devices/a", telemetry=device_pb2.Telemetry(temp_c=float("nan")))
    device.telemetry.read_at.seconds = 10**18
    booking = beyond.bookings.add(name="bookings/b", device_count=2, device_names=["devices/a"])
    booking.starts_at.seconds = 10**18
    return [message.SerializeToString(), beyond.SerializeToString()]


VIEWS = [Target(name="views", run=no_loop(_show), seeds=_snapshots, large_bytes=4096, quick_inputs=40)]
