"""Reasons of waiting requests on the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fleet.base.text import sendable
from fleet.domain.narrowing import ClauseCount
from fleet.domain.waits import Forecast, LeaseBefore, QuotaLimit, QuotaUse, Wait, WaitReason
from fleet.v1 import lease_pb2
from fleet.wire.bookings import booking_before_from_proto, booking_before_to_proto
from fleet.wire.lease_classes import LEASE_CLASSES, class_from_proto
from fleet.wire.times import duration, duration_sec, optional_duration, timestamp, timestamp_sec

WAIT_REASONS: Mapping[WaitReason, lease_pb2.WaitReason] = {
    WaitReason.JOURNAL_FAILED: lease_pb2.WAIT_REASON_JOURNAL_FAILED,
    WaitReason.NO_DEVICE: lease_pb2.WAIT_REASON_NO_DEVICE,
    WaitReason.LEASED: lease_pb2.WAIT_REASON_LEASED,
    WaitReason.OFFLINE: lease_pb2.WAIT_REASON_OFFLINE,
    WaitReason.FAULTED: lease_pb2.WAIT_REASON_FAULTED,
    WaitReason.QUOTA: lease_pb2.WAIT_REASON_QUOTA,
    WaitReason.QUEUED: lease_pb2.WAIT_REASON_QUEUED,
    WaitReason.SET: lease_pb2.WAIT_REASON_SET,
    WaitReason.BOOKED: lease_pb2.WAIT_REASON_BOOKED,
    WaitReason.MARKED: lease_pb2.WAIT_REASON_MARKED,
}
_BY_NUMBER: Mapping[int, WaitReason] = {number: reason for reason, number in WAIT_REASONS.items()}
_LIMITS: Mapping[QuotaLimit | None, lease_pb2.QuotaLimit] = {
    None: lease_pb2.QUOTA_LIMIT_UNSPECIFIED,
    QuotaLimit.LEASES: lease_pb2.QUOTA_LIMIT_LEASES,
    QuotaLimit.DEVICE_TIME: lease_pb2.QUOTA_LIMIT_DEVICE_TIME,
}


def wait_to_proto(wait: Wait) -> lease_pb2.Wait:
    return lease_pb2.Wait(
        reason=WAIT_REASONS[wait.reason],
        match_count=wait.match_count,
        ready_count=wait.ready_count,
        device_name=wait.device_name,
        detail=sendable(wait.detail),
        quota=quota_to_proto(wait.quota) if wait.quota else None,
        leases=map(lease_before_to_proto, wait.leases),
        clauses=map(_clause_to_proto, wait.clauses),
        booking=booking_before_to_proto(wait.booking) if wait.booking else None,
    )


def wait_from_proto(message: lease_pb2.Wait) -> Wait | None:
    """Read a reason; None for one that is known only to newer trackers."""
    reason = _BY_NUMBER.get(message.reason)
    if reason is None:
        return None
    return Wait(
        reason=reason,
        match_count=message.match_count,
        ready_count=message.ready_count,
        device_name=message.device_name,
        detail=message.detail,
        quota=quota_from_proto(message.quota) if message.HasField("quota") else None,
        leases=tuple(map(lease_before_from_proto, message.leases)),
        clauses=tuple(ClauseCount(each.clause, each.device_count) for each in message.clauses),
        booking=booking_before_from_proto(message.booking) if message.HasField("booking") else None,
    )


def forecast_to_proto(forecast: Forecast) -> lease_pb2.Forecast:
    return lease_pb2.Forecast(
        likely_from=timestamp(forecast.from_sec),
        expected=timestamp(forecast.expected_sec),
        likely_by=timestamp(forecast.by_sec),
    )


def forecast_from_proto(message: lease_pb2.Forecast) -> Forecast:
    return Forecast(
        from_sec=timestamp_sec(message.likely_from),
        expected_sec=timestamp_sec(message.expected),
        by_sec=timestamp_sec(message.likely_by),
    )


def quota_to_proto(use: QuotaUse) -> lease_pb2.QuotaUse:
    return lease_pb2.QuotaUse(
        account=use.account,
        lease_class=LEASE_CLASSES[use.lease_class],
        limit=_LIMITS[use.limit],
        leases=use.leases,
        most_leases=int(use.most_leases) if use.most_leases < math.inf else None,
        used_today=duration(use.day_sec),
        most_per_day=duration(use.most_day_sec) if use.most_day_sec < math.inf else None,
    )


def quota_from_proto(message: lease_pb2.QuotaUse) -> QuotaUse:
    return QuotaUse(
        account=message.account,
        lease_class=class_from_proto(message.lease_class),
        leases=message.leases,
        most_leases=message.most_leases if message.HasField("most_leases") else math.inf,
        day_sec=duration_sec(message.used_today),
        most_day_sec=duration_sec(message.most_per_day) if message.HasField("most_per_day") else math.inf,
    )


def lease_before_to_proto(lease: LeaseBefore) -> lease_pb2.LeaseBefore:
    return lease_pb2.LeaseBefore(
        device_name=lease.device_name,
        holder=lease.holder,
        holder_note=lease.holder_note,
        account=lease.account,
        lease_class=LEASE_CLASSES[lease.lease_class],
        held=optional_duration(lease.held_sec),
    )


def lease_before_from_proto(message: lease_pb2.LeaseBefore) -> LeaseBefore:
    return LeaseBefore(
        device_name=message.device_name,
        holder=message.holder,
        holder_note=message.holder_note,
        account=message.account,
        lease_class=class_from_proto(message.lease_class),
        held_sec=duration_sec(message.held),
    )


def _clause_to_proto(count: ClauseCount) -> lease_pb2.ClauseCount:
    return lease_pb2.ClauseCount(clause=count.clause, device_count=count.device_count)
