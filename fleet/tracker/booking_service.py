"""Serves bookings: fleet.v1.BookingService."""

from __future__ import annotations

import logging

from fleet.base.text import sanitize
from fleet.errors import DiskFull, InvalidRequest, NotFound
from fleet.identity.policy import check_owner
from fleet.tracker.core import events as ev
from fleet.tracker.core.admission import MAX_SHOWN_CHARS
from fleet.tracker.engine import Engine
from fleet.tracker.members import Members
from fleet.tracker.messages import PORTION_OF_BOOKINGS, booking_of, bookings_to_proto
from fleet.tracker.pace import Pace, portions
from fleet.v1 import booking_service_pb2 as pb
from fleet.wire.bookings import booking_to_proto
from fleet.wire.peers import CallContext, caller_of
from fleet.wire.times import timestamp_sec

logger = logging.getLogger(__name__)

_MAX_REQUEST_ID_CHARS = 128
_CANCEL = "BookingService.CancelBooking"


class BookingServicer:
    """fleet.v1.BookingService."""

    def __init__(self, engine: Engine, members: Members, pace: Pace) -> None:
        self._engine = engine
        self._queries = engine.queries
        self._members = members
        self._pace = pace

    async def book(self, request: pb.BookRequest, context: CallContext) -> pb.BookResponse:
        if len(request.request_id) > _MAX_REQUEST_ID_CHARS:
            raise InvalidRequest(f"the request_id has more than {_MAX_REQUEST_ID_CHARS} characters")
        if not (request.HasField("starts_at") and request.HasField("ends_at")):
            raise InvalidRequest("a booking has a start and an end; send both")
        caller = caller_of(context)
        if caller.key_id:
            holder = sanitize(self._members.display_name(caller), MAX_SHOWN_CHARS)
            account, _ = self._members.account_of(caller.key_id)
        else:  # without TLS all clients belong to one account, so their names are trusted
            holder = account = sanitize(request.holder, MAX_SHOWN_CHARS) or "unknown"
        event = ev.Book(
            selector=request.selector,
            device_count=request.device_count or 1,
            starts_at_sec=timestamp_sec(request.starts_at),
            ends_at_sec=timestamp_sec(request.ends_at),
            holder=holder,
            account=account,
            key_id=caller.key_id,
            request_id=request.request_id,
        )
        effects = await self._engine.ask(event)
        for effect in effects:
            if isinstance(effect, ev.BookingRefused):
                raise effect.error_class(effect.message)
        booked = next(effect.booking for effect in effects if isinstance(effect, ev.Booked))
        if trouble := self._queries.journal_trouble:
            await self._engine.ask(ev.CancelBooking(booked.name))
            raise DiskFull(trouble)
        shown = booking_of(booked, self._queries)
        logger.info("booked", extra={"booking": shown.name, "holder": holder, "selector": shown.selector})
        return pb.BookResponse(booking=booking_to_proto(shown))

    async def list_bookings(self, _: pb.ListBookingsRequest, __: object) -> pb.ListBookingsResponse:
        listed = []
        for portion in portions(self._queries.bookings(), PORTION_OF_BOOKINGS):
            await self._pace.turn()
            listed += bookings_to_proto(portion, self._queries)
        return pb.ListBookingsResponse(bookings=listed)

    async def cancel_booking(self, request: pb.CancelBookingRequest, context: CallContext) -> pb.CancelBookingResponse:
        entry, caller = self._queries.booking(request.name), caller_of(context)
        if entry is not None:
            is_own = bool(caller.key_id) and self._members.account_of(caller.key_id)[0] == entry.account
            if not is_own:
                check_owner(_CANCEL, caller, entry.key_id, what=entry.name)
            shown = booking_of(entry, self._queries)
            effects = await self._engine.ask(ev.CancelBooking(entry.name))
            if any(isinstance(effect, ev.BookingCancelled) for effect in effects):
                if trouble := self._queries.journal_trouble:
                    raise DiskFull(f"{trouble}; a restart of the tracker may bring {shown.name} back: cancel it again")
                logger.info("booking cancelled", extra={"booking": shown.name, "by": caller.name})
                return pb.CancelBookingResponse(booking=booking_to_proto(shown))
        name = sanitize(request.name, MAX_SHOWN_CHARS)
        raise NotFound(f"there is no booking {name!r}; 'fleet bookings' lists those there are")
