"""Leases and requests for them on the wire."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.base.text import sendable
from fleet.domain.leases import Lease, LeaseEnd, LeaseWish, PendingRequest
from fleet.v1 import lease_pb2, lease_service_pb2
from fleet.wire.times import optional_duration, timestamp, timestamp_sec

LEASE_ENDS: Mapping[LeaseEnd, lease_service_pb2.LeaseEnd] = {
    LeaseEnd.RELEASED: lease_service_pb2.LEASE_END_RELEASED,
    LeaseEnd.EXPIRED: lease_service_pb2.LEASE_END_EXPIRED,
    LeaseEnd.REVOKED: lease_service_pb2.LEASE_END_REVOKED,
    LeaseEnd.CLIENT_LOST: lease_service_pb2.LEASE_END_CLIENT_LOST,
    LeaseEnd.UNKNOWN: lease_service_pb2.LEASE_END_UNKNOWN,
}
_ENDS_BY_NUMBER: Mapping[int, LeaseEnd] = {number: end for end, number in LEASE_ENDS.items()}


def lease_to_proto(lease: Lease) -> lease_pb2.Lease:
    return lease_pb2.Lease(
        name=lease.name,
        device_name=lease.device_name,
        epoch=lease.epoch,
        holder=lease.holder,
        granted_at=timestamp(lease.granted_at_sec),
        expires_at=timestamp(lease.expires_at_sec),
        ends_at=timestamp(lease.ends_at_sec),
        purpose=lease.purpose,
        holder_note=lease.holder_note,
    )


def lease_from_proto(message: lease_pb2.Lease) -> Lease:
    return Lease(
        name=message.name,
        device_name=message.device_name,
        epoch=message.epoch,
        holder=message.holder,
        granted_at_sec=timestamp_sec(message.granted_at),
        expires_at_sec=timestamp_sec(message.expires_at),
        ends_at_sec=timestamp_sec(message.ends_at),
        purpose=message.purpose,
        holder_note=message.holder_note,
    )


def lease_end_from_proto(value: int) -> LeaseEnd:
    """Read how a lease ended. An end known only to newer trackers becomes UNKNOWN, since the lease is over anyway."""
    return _ENDS_BY_NUMBER.get(value, LeaseEnd.UNKNOWN)


def wish_to_proto(request_id: str, wish: LeaseWish) -> lease_pb2.Acquire:
    return lease_pb2.Acquire(
        request_id=request_id,
        selector=str(wish.selector),
        priority=wish.priority,
        ttl=optional_duration(wish.ttl_sec),
        max_duration=optional_duration(wish.max_sec),
        wait_timeout=optional_duration(wish.wait_timeout_sec),
        purpose=sendable(wish.purpose),
        prefer=str(wish.prefer) if wish.prefer is not None else "",
        bid=wish.bid,
    )


def request_to_proto(request: PendingRequest) -> lease_pb2.PendingRequest:
    return lease_pb2.PendingRequest(
        request_id=request.request_id,
        holder=request.holder,
        selector=request.selector,
        priority=request.priority,
        asked_at=timestamp(request.asked_at_sec),
        position=request.position,
        reason=request.reason,
        purpose=request.purpose,
        holder_note=request.holder_note,
    )


def request_from_proto(message: lease_pb2.PendingRequest) -> PendingRequest:
    return PendingRequest(
        request_id=message.request_id,
        holder=message.holder,
        selector=message.selector,
        priority=message.priority,
        asked_at_sec=timestamp_sec(message.asked_at),
        position=message.position,
        reason=message.reason,
        purpose=message.purpose,
        holder_note=message.holder_note,
    )
