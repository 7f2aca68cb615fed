"""Answers to the question why a request waits, on the wire."""

from __future__ import annotations

from fleet.base.text import sendable
from fleet.domain.explanation import Candidate, Explanation, Omission
from fleet.v1 import lease_service_pb2
from fleet.wire.bookings import booking_before_from_proto, booking_before_to_proto
from fleet.wire.devices import state_from_proto, state_to_proto
from fleet.wire.leases import request_from_proto, request_to_proto
from fleet.wire.times import duration, duration_sec, timestamp, timestamp_sec
from fleet.wire.waits import lease_before_from_proto, lease_before_to_proto, quota_from_proto, quota_to_proto


def explanation_to_proto(found: Explanation) -> lease_service_pb2.ExplainRequestResponse:
    return lease_service_pb2.ExplainRequestResponse(
        request=request_to_proto(found.request),
        at=timestamp(found.at_sec),
        account=found.account,
        weight=found.weight,
        used=duration(found.used_sec),
        share_had=found.share_had,
        share_due=found.share_due,
        quota=quota_to_proto(found.quota) if found.quota else None,
        device_count=found.device_count,
        candidates=map(_candidate_to_proto, found.candidates),
        omissions=[
            lease_service_pb2.ClauseOmission(
                clause=each.clause, device_count=each.device_count, free_count=each.free_count
            )
            for each in found.omissions
        ],
    )


def explanation_from_proto(message: lease_service_pb2.ExplainRequestResponse) -> Explanation:
    return Explanation(
        request=request_from_proto(message.request),
        at_sec=timestamp_sec(message.at),
        account=message.account,
        weight=message.weight,
        used_sec=duration_sec(message.used),
        share_had=message.share_had,
        share_due=message.share_due,
        quota=quota_from_proto(message.quota) if message.HasField("quota") else None,
        device_count=message.device_count,
        candidates=tuple(map(_candidate_from_proto, message.candidates)),
        omissions=tuple(Omission(each.clause, each.device_count, each.free_count) for each in message.omissions),
    )


def _candidate_to_proto(candidate: Candidate) -> lease_service_pb2.Candidate:
    return lease_service_pb2.Candidate(
        device_name=candidate.device_name,
        state=state_to_proto(candidate.state),
        reason=sendable(candidate.reason),
        lease=lease_before_to_proto(candidate.lease) if candidate.lease else None,
        free_at=timestamp(candidate.free_at_sec) if candidate.free_at_sec is not None else None,
        booking=booking_before_to_proto(candidate.booking) if candidate.booking else None,
    )


def _candidate_from_proto(message: lease_service_pb2.Candidate) -> Candidate:
    return Candidate(
        device_name=message.device_name,
        state=state_from_proto(message.state),
        reason=message.reason,
        lease=lease_before_from_proto(message.lease) if message.HasField("lease") else None,
        free_at_sec=timestamp_sec(message.free_at) if message.HasField("free_at") else None,
        booking=booking_before_from_proto(message.booking) if message.HasField("booking") else None,
    )
