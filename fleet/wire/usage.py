"""Use of the fleet on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.domain.usage import Usage, UsageKey, UsageRow
from fleet.errors import InvalidRequest
from fleet.v1 import fleet_service_pb2
from fleet.wire.times import duration, duration_sec, optional_duration, timestamp, timestamp_sec

USAGE_KEYS: Mapping[UsageKey, fleet_service_pb2.UsageKey] = {
    UsageKey.ACCOUNT: fleet_service_pb2.USAGE_KEY_ACCOUNT,
    UsageKey.DEVICE: fleet_service_pb2.USAGE_KEY_DEVICE,
    UsageKey.CLASS: fleet_service_pb2.USAGE_KEY_CLASS,
}
_BY_NUMBER: Mapping[int, UsageKey] = {
    fleet_service_pb2.USAGE_KEY_UNSPECIFIED: UsageKey.ACCOUNT,
    **{number: key for key, number in USAGE_KEYS.items()},
}


def usage_key_from_proto(value: int) -> UsageKey:
    """Read a subject.

    Raises:
        InvalidRequest: this version does not know it.
    """
    if value not in _BY_NUMBER:
        raise InvalidRequest(f"use by {value} is unknown; choose one of {', '.join(UsageKey)}")
    return _BY_NUMBER[value]


def usage_to_proto(usage: Usage) -> fleet_service_pb2.GetUsageResponse:
    return fleet_service_pb2.GetUsageResponse(since=timestamp(usage.since_sec), rows=map(_row_to_proto, usage.rows))


def usage_from_proto(message: fleet_service_pb2.GetUsageResponse) -> Usage:
    return Usage(since_sec=timestamp_sec(message.since), rows=tuple(map(_row_from_proto, message.rows)))


def _row_to_proto(row: UsageRow) -> fleet_service_pb2.UsageRow:
    return fleet_service_pb2.UsageRow(
        key=row.key,
        holder=row.holder,
        lease_count=row.lease_count,
        device_time=duration(row.device_sec),
        mean_wait=optional_duration(row.wait_sec),
    )


def _row_from_proto(message: fleet_service_pb2.UsageRow) -> UsageRow:
    return UsageRow(
        key=message.key,
        holder=message.holder,
        lease_count=message.lease_count,
        device_sec=duration_sec(message.device_time),
        wait_sec=duration_sec(message.mean_wait) if message.HasField("mean_wait") else None,
    )
