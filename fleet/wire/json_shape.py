"""Domain values as JSON: the fields of the protos, which scripts rely on; see `fleet.wire.messages_json`."""

from __future__ import annotations

from typing import cast

from google.protobuf import json_format

from fleet.domain.bookings import Booking
from fleet.domain.devices import DeviceStatus, Inventory, Telemetry
from fleet.domain.explanation import Explanation
from fleet.domain.leases import Lease, PendingRequest
from fleet.domain.poison import Poison
from fleet.domain.snapshot import Snapshot
from fleet.domain.usage import Usage
from fleet.v1 import device_pb2
from fleet.wire.bookings import booking_to_proto
from fleet.wire.devices import device_to_proto, inventory_from_proto, inventory_to_proto, telemetry_to_proto
from fleet.wire.explanations import explanation_to_proto
from fleet.wire.leases import lease_to_proto, request_to_proto
from fleet.wire.messages_json import JsonObject, message_json
from fleet.wire.poison import poison_to_proto
from fleet.wire.snapshots import snapshot_to_proto
from fleet.wire.usage import usage_to_proto


def snapshot_json(snapshot: Snapshot) -> JsonObject:
    return message_json(snapshot_to_proto(snapshot))


def device_json(device: DeviceStatus) -> JsonObject:
    return message_json(device_to_proto(device))


def lease_json(lease: Lease) -> JsonObject:
    return message_json(lease_to_proto(lease))


def request_json(request: PendingRequest) -> JsonObject:
    return message_json(request_to_proto(request))


def booking_json(booking: Booking) -> JsonObject:
    return message_json(booking_to_proto(booking))


def poison_json(found: Poison) -> JsonObject:
    return message_json(poison_to_proto(found))


def explanation_json(found: Explanation) -> JsonObject:
    return message_json(explanation_to_proto(found))


def telemetry_json(telemetry: Telemetry) -> JsonObject:
    return message_json(telemetry_to_proto(telemetry))


def inventory_json(inventory: Inventory) -> str:
    """Return an inventory as text for `inventory_from_json` in another process."""
    return json_format.MessageToJson(inventory_to_proto(inventory), indent=None)


def inventory_from_json(text: str) -> Inventory:
    return inventory_from_proto(json_format.Parse(text, device_pb2.Inventory(), ignore_unknown_fields=True))


def usage_json(usage: Usage) -> JsonObject:
    """Return the rows with their shares."""
    shown = message_json(usage_to_proto(usage))
    rows = cast("list[JsonObject]", shown["rows"])
    return {**shown, "rows": [{**each, "share": usage.share(row)} for each, row in zip(rows, usage.rows, strict=True)]}
