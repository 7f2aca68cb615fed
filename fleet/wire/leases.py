"""Leases and requests for them on the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from fleet.base.text import sendable
from fleet.domain.leases import Lease, LeaseEnd, LeaseTerms, PendingRequest, YieldWanted
from fleet.domain.shares import Reload
from fleet.domain.waits import wait_text
from fleet.v1 import lease_pb2, lease_service_pb2
from fleet.wire.health import HEALTH_STATES, state_from_proto
from fleet.wire.lease_classes import LEASE_CLASSES, class_from_proto, known_class
from fleet.wire.times import duration, duration_sec, optional_duration, timestamp, timestamp_sec
from fleet.wire.waits import forecast_from_proto, forecast_to_proto, wait_from_proto, wait_to_proto

LEASE_ENDS: Mapping[LeaseEnd, lease_service_pb2.LeaseEnd] = {
    LeaseEnd.RELEASED: lease_service_pb2.LEASE_END_RELEASED,
    LeaseEnd.EXPIRED: lease_service_pb2.LEASE_END_EXPIRED,
    LeaseEnd.REVOKED: lease_service_pb2.LEASE_END_REVOKED,
    LeaseEnd.CLIENT_LOST: lease_service_pb2.LEASE_END_CLIENT_LOST,
    LeaseEnd.YIELDED: lease_service_pb2.LEASE_END_YIELDED,
    LeaseEnd.UNKNOWN: lease_service_pb2.LEASE_END_UNKNOWN,
}
_ENDS_BY_NUMBER: Mapping[int, LeaseEnd] = {number: end for end, number in LEASE_ENDS.items()}

_CONVERTED_TERMS = {"lease_class", "ttl_sec", "max_sec", "wait_timeout_sec", "purpose", "also", "even_if"}
_PLAIN_TERMS = tuple(field.name for field in fields(LeaseTerms) if field.name not in _CONVERTED_TERMS)
"""Terms that a message has under the same name, as they are."""


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
        account=lease.account,
        lease_class=LEASE_CLASSES[lease.lease_class] if lease.lease_class else None,
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
        account=message.account,
        lease_class=known_class(message.lease_class),
    )


def lease_end_from_proto(value: int) -> LeaseEnd:
    """Read how a lease ended. An end known only to newer trackers becomes UNKNOWN, since the lease is over anyway."""
    return _ENDS_BY_NUMBER.get(value, LeaseEnd.UNKNOWN)


def yield_from_proto(message: lease_service_pb2.YieldWanted) -> YieldWanted:
    return YieldWanted(
        lease_name=message.lease_name,
        until_sec=timestamp_sec(message.until),
        lease_class=class_from_proto(message.lease_class),
        reason=message.reason,
    )


def acquire_to_proto(request_id: str, terms: LeaseTerms, continues: str = "") -> lease_pb2.Acquire:
    message = _terms_to_proto(terms)
    message.request_id, message.continues = request_id, continues
    return message


def terms_from_proto(message: lease_pb2.Acquire) -> LeaseTerms:
    """Read terms, unchecked. A length that is unset or zero is 0 for the ttl and None for the others.

    A class that is unset, or known only to newer versions, is normal.
    """
    return LeaseTerms(
        **{name: getattr(message, name) for name in _PLAIN_TERMS},
        lease_class=class_from_proto(message.lease_class),
        ttl_sec=duration_sec(message.ttl),
        max_sec=duration_sec(message.max_duration) or None,
        wait_timeout_sec=duration_sec(message.wait_timeout) or None,
        purpose=message.purpose,
        also=tuple(message.also),
        even_if=state_from_proto(message.even_if),
    )


def request_to_proto(request: PendingRequest) -> lease_pb2.PendingRequest:
    terms = _terms_to_proto(request.terms)
    return lease_pb2.PendingRequest(
        request_id=request.request_id,
        holder=request.holder,
        selector=terms.selector,
        priority=terms.priority,
        asked_at=timestamp(request.asked_at_sec),
        position=request.position,
        reason=request.reason,
        purpose=terms.purpose,
        holder_note=request.holder_note,
        account=request.account,
        terms=terms,
        wait=wait_to_proto(request.wait) if request.wait else None,
        forecast=forecast_to_proto(request.forecast) if request.forecast else None,
    )


def request_from_proto(message: lease_pb2.PendingRequest) -> PendingRequest:
    """Read a waiting request. Older trackers send a few of its terms, as fields of its own, and the reason as text."""
    older = LeaseTerms(selector=message.selector, priority=message.priority, purpose=message.purpose)
    wait = wait_from_proto(message.wait) if message.HasField("wait") else None
    return PendingRequest(
        request_id=message.request_id,
        holder=message.holder,
        terms=terms_from_proto(message.terms) if message.HasField("terms") else older,
        asked_at_sec=timestamp_sec(message.asked_at),
        position=message.position,
        reason=wait_text(wait) if wait else message.reason,
        wait=wait,
        forecast=forecast_from_proto(message.forecast) if message.HasField("forecast") else None,
        holder_note=message.holder_note,
        account=message.account,
    )


def _terms_to_proto(terms: LeaseTerms) -> lease_pb2.Acquire:
    return lease_pb2.Acquire(
        **{name: getattr(terms, name) for name in _PLAIN_TERMS},
        lease_class=LEASE_CLASSES[terms.lease_class],
        ttl=optional_duration(terms.ttl_sec),
        max_duration=optional_duration(terms.max_sec),
        wait_timeout=optional_duration(terms.wait_timeout_sec),
        purpose=sendable(terms.purpose),
        also=terms.also,
        even_if=HEALTH_STATES[terms.even_if] if terms.even_if is not None else None,
    )


def reload_to_proto(reload: Reload) -> lease_service_pb2.ReloadTrackerResponse:
    return lease_service_pb2.ReloadTrackerResponse(
        path=sendable(reload.path),
        account_count=reload.account_count,
        changed_account_count=reload.changed_account_count,
        class_count=reload.class_count,
        half_life=duration(reload.half_life_sec),
        starvation=duration(reload.starvation_sec),
        is_changed=reload.is_changed,
    )


def reload_from_proto(message: lease_service_pb2.ReloadTrackerResponse) -> Reload:
    return Reload(
        path=message.path,
        account_count=message.account_count,
        changed_account_count=message.changed_account_count,
        class_count=message.class_count,
        half_life_sec=duration_sec(message.half_life),
        starvation_sec=duration_sec(message.starvation),
        is_changed=message.is_changed,
    )
