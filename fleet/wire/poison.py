"""Programs that killed a device, on the wire."""

from __future__ import annotations

from fleet.base.text import sendable
from fleet.domain.poison import Poison
from fleet.v1 import poison_service_pb2
from fleet.wire.times import timestamp, timestamp_sec


def poison_to_proto(found: Poison) -> poison_service_pb2.PoisonedProgram:
    return poison_service_pb2.PoisonedProgram(
        digest=found.digest,
        device_name=found.device_name,
        reported_by=sendable(found.reported_by),
        reported_at=timestamp(found.at_sec),
        expires_at=timestamp(found.expires_sec),
    )


def poison_from_proto(message: poison_service_pb2.PoisonedProgram) -> Poison:
    return Poison(
        digest=message.digest,
        device_name=message.device_name,
        reported_by=message.reported_by,
        at_sec=timestamp_sec(message.reported_at),
    )
