"""The tracker's records and effects as protobuf messages."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from fleet.domain.bookings import Booking
from fleet.domain.explanation import Candidate
from fleet.domain.leases import Lease, LeaseClass, PendingRequest
from fleet.domain.tokens import Claims, TokenSigner
from fleet.domain.waits import BookingBefore, Forecast, LeaseBefore, Wait, wait_text
from fleet.errors import FleetError, InvalidRequest
from fleet.tracker.core import events as ev
from fleet.tracker.core.queries import Queries
from fleet.tracker.core.records import BookingEntry, DeviceEntry, LeaseEntry, RequestEntry
from fleet.tracker.core.standing import Standing
from fleet.tracker.outbox import Outbox
from fleet.v1 import booking_pb2, device_pb2, lease_pb2, lease_service_pb2
from fleet.wire import leases
from fleet.wire.bookings import booking_to_proto
from fleet.wire.devices import state_from_proto
from fleet.wire.health import mark_to_proto
from fleet.wire.lease_classes import LEASE_CLASSES, is_known_class
from fleet.wire.leases import LEASE_ENDS, terms_from_proto
from fleet.wire.times import timestamp
from fleet.wire.tokens import sign_claims

PORTION_OF_BOOKINGS = 16
"""Bookings converted at once: up to 50 us for each, with 64 devices."""

ClientOutbox = Outbox[lease_service_pb2.TrackerEvent]


def owned_id(key_id: str, chosen: str) -> str:
    """Return the tracker's id of a client or agent: its own choice, within its key.

    So an id that became known is of no use to others.
    """
    return f"{key_id}:{chosen}"


def key_of(owned: str) -> str:
    """Return the key in an id made by `owned_id`."""
    return owned.partition(":")[0]


def lease_of(entry: LeaseEntry) -> Lease:
    """Return a lease as clients see it."""
    return Lease(
        name=entry.name,
        device_name=entry.device_name,
        epoch=entry.epoch,
        holder=entry.holder,
        granted_at_sec=entry.granted_at_sec,
        expires_at_sec=entry.expires_at_sec,
        ends_at_sec=entry.ends_at_sec,
        purpose=entry.terms.purpose,
        holder_note=entry.note,
        account=_shown_account(entry),
        lease_class=entry.terms.lease_class,
    )


def booking_of(entry: BookingEntry, queries: Queries) -> Booking:
    """Return a booking as clients see it."""
    return Booking(
        name=entry.name,
        selector=entry.selector,
        device_count=len(entry.device_names),
        starts_at_sec=entry.starts_at_sec,
        ends_at_sec=entry.ends_at_sec,
        holder=entry.holder,
        account="" if entry.account in (entry.holder, entry.key_id) else entry.account,
        booked_at_sec=entry.booked_at_sec,
        device_names=queries.kept_devices(entry.name),
        leased_count=queries.booked_lease_count(entry.name),
        missing_device_names=queries.lost_devices(entry.name),
    )


def bookings_to_proto(entries: Sequence[BookingEntry], queries: Queries) -> list[booking_pb2.Booking]:
    """Return a portion of the bookings as messages, without those that ended since they were listed."""
    live = (entry for entry in entries if queries.booking(entry.name) is entry)
    return [booking_to_proto(booking_of(entry, queries)) for entry in live]


def _shown_account(entry: LeaseEntry | RequestEntry) -> str:
    """Return the account of a lease or request; empty if it is the holder's own."""
    return "" if entry.account in (entry.holder, key_of(entry.client_id)) else entry.account


def make_token(lease: LeaseEntry, signer: TokenSigner, queries: Queries) -> lease_pb2.Token:
    """Sign the proof of a lease's current state."""
    claims = Claims(
        lease_name=lease.name,
        device_name=lease.device_name,
        epoch=lease.epoch,
        holder=lease.holder,
        issued_at_sec=queries.now_sec,
        expires_at_sec=lease.expires_at_sec,
        nonce=queries.token_nonce(queries.leased_device(lease)),
        holder_key_id=key_of(lease.client_id),
    )
    return sign_claims(claims, signer)


@functools.lru_cache(maxsize=32_768)  # beyond the devices that a tracker takes
def board_model(description: bytes) -> str:
    """Return the model of a device, or its kind, from its serialised inventory; empty if unreadable."""
    try:
        inventory = device_pb2.Inventory.FromString(description)
    except DecodeError:
        return ""
    return inventory.device_model or inventory.kind


def device_state(device: DeviceEntry) -> device_pb2.DeviceState:
    if not device.is_attached:
        return device_pb2.DEVICE_STATE_OFFLINE
    if not device.is_healthy:
        return device_pb2.DEVICE_STATE_FAULTED
    return device_pb2.DEVICE_STATE_LEASED if device.lease else device_pb2.DEVICE_STATE_AVAILABLE


def device_to_proto(device: DeviceEntry, telemetry: device_pb2.Telemetry | None = None) -> device_pb2.Device:
    message = device_pb2.Device(
        name=device.name,
        state=device_state(device),
        address=device.address,
        epoch=device.epoch,
        telemetry=telemetry,
        reason=device.reason if device.is_attached else "its agent is not attached",
        bitstream_digest=device.bitstream_digest,
        agent_key_id=device.agent_key_id,
        health_mark=mark_to_proto(device.mark),
        relay_address=device.relay_address,
    )
    with contextlib.suppress(DecodeError):  # one odd device of an older journal must not hide all others
        message.inventory.MergeFromString(device.description)
    if device.attached_at_sec:
        message.attached_at.CopyFrom(timestamp(device.attached_at_sec))
    if device.lease:
        message.lease_name, message.holder = device.lease.name, device.lease.holder
        message.holder_note = device.lease.note
        message.granted_at.CopyFrom(timestamp(device.lease.granted_at_sec))
    return message


def request_to_proto(
    request: RequestEntry, standing: Standing, forecast: Forecast | None = None
) -> lease_pb2.PendingRequest:
    return leases.request_to_proto(pending_of(request, standing, forecast))


def pending_of(request: RequestEntry, standing: Standing, forecast: Forecast | None = None) -> PendingRequest:
    """Return a waiting request as clients see it."""
    wait = wait_of(standing)
    return PendingRequest(
        request_id=request.request_id,
        holder=request.holder,
        terms=request.terms,
        asked_at_sec=request.asked_at_sec,
        position=standing.position,
        reason=wait_text(wait),
        wait=wait,
        forecast=forecast,
        holder_note=request.note,
        account=_shown_account(request),
    )


def wait_of(standing: Standing) -> Wait:
    """Return the reason of a wait as clients see it."""
    return Wait(
        reason=standing.reason,
        match_count=standing.match_count,
        ready_count=standing.ready_count,
        device_name=standing.device_name,
        detail=standing.detail,
        quota=standing.quota,
        leases=[_lease_before(lease, standing.at_sec) for lease in standing.leases],
        clauses=standing.clauses,
        booking=_booking_before(standing.booking, standing.at_sec) if standing.booking else None,
    )


def _booking_before(booking: BookingEntry, now: float) -> BookingBefore:
    return BookingBefore(
        name=booking.name,
        holder=booking.holder,
        starts_in_sec=max(booking.starts_at_sec - now, 0.0),
        ends_in_sec=max(booking.ends_at_sec - now, 0.0),
    )


def _lease_before(lease: LeaseEntry, now: float) -> LeaseBefore:
    return LeaseBefore(
        device_name=lease.device_name,
        holder=lease.holder,
        holder_note=lease.note,
        account=_shown_account(lease),
        lease_class=lease.terms.lease_class,
        held_sec=max(now - lease.granted_at_sec, 0.0),
    )


def candidate_of(device: DeviceEntry, booking: BookingEntry | None, now: float, free_at_sec: float | None) -> Candidate:
    """Return a device that matches a request as clients see it."""
    return Candidate(
        device_name=device.name,
        state=state_from_proto(device_state(device)),
        reason=device.reason if device.is_attached else "its agent is not attached",
        lease=_lease_before(device.lease, now) if device.lease else None,
        free_at_sec=free_at_sec,
        booking=_booking_before(booking, now) if booking else None,
    )


def effect_to_proto(
    effect: ev.Granted | ev.Refused | ev.Renewed | ev.LeaseEnded | ev.YieldWanted | ev.Outbid,
    queries: Queries,
    signer: TokenSigner,
) -> lease_service_pb2.TrackerEvent:
    """Return the message that reports an effect to a client."""
    message = lease_service_pb2.TrackerEvent()
    match effect:
        case ev.Granted(_, lease):
            message.granted.request_id, message.granted.member = effect.set_id or lease.request_id, effect.member
            message.granted.lease.MergeFrom(leases.lease_to_proto(lease_of(lease)))
            message.granted.token.MergeFrom(make_token(lease, signer, queries))
            message.granted.device.MergeFrom(device_to_proto(queries.leased_device(lease)))
        case ev.Renewed(_, lease):
            message.renewed.lease.MergeFrom(leases.lease_to_proto(lease_of(lease)))
            message.renewed.token.MergeFrom(make_token(lease, signer, queries))
        case ev.Refused(_, request_id, error_class, text):
            message.MergeFrom(refusal(request_id, error_class, text))
        case ev.YieldWanted(_, wanted):
            message.yield_wanted.lease_name = wanted.lease_name
            message.yield_wanted.until.CopyFrom(timestamp(wanted.until_sec))
            message.yield_wanted.lease_class = LEASE_CLASSES[wanted.lease_class]
            message.yield_wanted.reason = wanted.reason
        case ev.Outbid(_, lease_name, bid):
            message.outbid.lease_name, message.outbid.bid = lease_name, bid
        case ev.LeaseEnded(lease_name=lease_name, end=end, message=text):
            message.lease_ended.lease_name = lease_name
            message.lease_ended.end = LEASE_ENDS[end]
            message.lease_ended.message = text
    return message


def queued_event(
    request: RequestEntry, standing: Standing, forecast: Forecast | None = None
) -> lease_service_pb2.TrackerEvent:
    """Return the message that tells a client the state of a waiting request."""
    return lease_service_pb2.TrackerEvent(queued=request_to_proto(request, standing, forecast))


def booking_event(entry: BookingEntry, queries: Queries) -> lease_service_pb2.TrackerEvent:
    """Return the message that tells a client the state of a booking."""
    changed = lease_service_pb2.BookingChanged(booking=booking_to_proto(booking_of(entry, queries)))
    return lease_service_pb2.TrackerEvent(booking_changed=changed)


def refusal(request_id: str, error_class: type[FleetError], text: str) -> lease_service_pb2.TrackerEvent:
    """Return the message that ends a request without a device."""
    refused = lease_service_pb2.Refused(request_id=request_id, error_class=error_class.__name__, message=text)
    return lease_service_pb2.TrackerEvent(refused=refused)


def client_event(client_id: str, message: lease_service_pb2.ClientEvent) -> ev.Event | None:
    """Convert a client's event; None for a job, and for unknown events of newer clients.

    Raises:
        InvalidRequest: it requests a device in a class that this tracker does not know.
    """
    match message.WhichOneof("kind"):
        case "acquire":
            acquire = message.acquire
            if not is_known_class(acquire.lease_class):
                known = ", ".join(LeaseClass)
                raise InvalidRequest(f"class {acquire.lease_class} of a request is unknown; choose one of {known}")
            return ev.Acquire(client_id, acquire.request_id, terms_from_proto(acquire), acquire.continues)
        case "cancel":
            return ev.Cancel(client_id, message.cancel.request_id)
        case "renew":
            return ev.Renew(client_id, message.renew.lease_name)
        case "release":
            return ev.Release(client_id, message.release.lease_name)
    return None
