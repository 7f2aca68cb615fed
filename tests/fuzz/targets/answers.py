"""Answers of trackers, agents and optimizers: clients and agents trust the senders, but check the content."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError, Message

from fleet.domain.devices import DeviceState, DeviceStatus, Inventory, Telemetry
from fleet.domain.leases import Lease
from fleet.domain.snapshot import Snapshot
from fleet.errors import InvalidRequest
from fleet.v1 import (
    booking_pb2,
    cost_model_service_pb2,
    device_pb2,
    fleet_service_pb2,
    identity_service_pb2,
    lease_pb2,
    lease_service_pb2,
    measurement_pb2,
)
from fleet.wire.bookings import booking_from_proto
from fleet.wire.devices import device_from_proto, device_to_proto
from fleet.wire.leases import lease_from_proto, lease_to_proto, request_from_proto
from fleet.wire.measurements import measurement_from_proto
from fleet.wire.messages_json import message_json
from fleet.wire.model_snapshots import model_snapshot_from_proto
from fleet.wire.sanitize import sanitize_message
from fleet.wire.snapshots import snapshot_from_proto, snapshot_to_proto
from tests.fuzz.target import Target, no_loop

_READERS: list[tuple[type[Message], Callable[[Any], object]]] = [
    (fleet_service_pb2.Snapshot, snapshot_from_proto),
    (device_pb2.Device, device_from_proto),
    (lease_pb2.Lease, lease_from_proto),
    (lease_pb2.PendingRequest, request_from_proto),
    (measurement_pb2.Measurement, measurement_from_proto),
    (cost_model_service_pb2.ModelSnapshot, model_snapshot_from_proto),
    (fleet_service_pb2.GetFleetResponse, message_json),
    (fleet_service_pb2.GetHistoryResponse, message_json),
    (identity_service_pb2.ListAuditEntriesResponse, message_json),
    (lease_service_pb2.OpenLeasesResponse, message_json),
    (booking_pb2.Booking, booking_from_proto),
]

_DEVICE = DeviceStatus(
    name="devices/a",
    inventory=Inventory(kind="cpu", labels={"arch": "x86_64"}, target_json="{}", device_model="m", facts={"a": "b"}),
    state=DeviceState.LEASED,
    address="here:1",
    lease_name="leases/1",
    telemetry=Telemetry(read_at_sec=1.5, temp_c=40.0, throttle_reasons=("hot",)),
    attached_at_sec=2.5,
)
_LEASE = Lease(
    name="leases/1",
    device_name="devices/a",
    epoch=3,
    holder="me",
    purpose="p",
    granted_at_sec=1.0,
    expires_at_sec=2.0,
    ends_at_sec=3.0,
)


SNAPSHOT = Snapshot(version=3, taken_at_sec=4.0, devices=(_DEVICE,), leases=(_LEASE,), request_count=0)


def _answer(content: bytes) -> None:
    """Parse the input as the message that its first byte selects."""
    kind, read = _READERS[(content[0] if content else 0) % len(_READERS)]
    try:
        message = kind.FromString(content[1:])
    except DecodeError:
        return
    sanitize_message(message)
    try:
        read(message)
    except InvalidRequest:
        assert kind is cost_model_service_pb2.ModelSnapshot


def _measurement() -> measurement_pb2.Measurement:
    """Return one with a moment that no calendar has."""
    measurement = measurement_pb2.Measurement(run_secs=[1.0])
    measurement.provenance.owner_facts_json = '{"a": 1}'
    measurement.provenance.before.read_at.seconds = 10**18
    return measurement


def _answers() -> list[bytes]:
    fleet = snapshot_to_proto(SNAPSHOT)
    return [
        b"\0" + fleet.SerializeToString(),
        b"\1" + device_to_proto(_DEVICE).SerializeToString(),
        b"\2" + lease_to_proto(_LEASE).SerializeToString(),
        b"\3" + lease_pb2.PendingRequest(request_id="r", selector="cpu").SerializeToString(),
        b"\4" + _measurement().SerializeToString(),
        b"\5" + cost_model_service_pb2.ModelSnapshot(digest="sha256:0", content=b"a").SerializeToString(),
        b"\6" + fleet_service_pb2.GetFleetResponse(snapshot=fleet).SerializeToString(),
    ]


ANSWERS = [Target(name="answers", run=no_loop(_answer), seeds=_answers)]
