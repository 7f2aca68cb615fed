"""Bookings on the wire."""

from __future__ import annotations

from fleet.base.text import sendable
from fleet.domain.bookings import Booking
from fleet.domain.waits import BookingBefore
from fleet.v1 import booking_pb2, lease_pb2
from fleet.wire.times import duration_sec, optional_duration, timestamp, timestamp_sec


def booking_to_proto(booking: Booking) -> booking_pb2.Booking:
    return booking_pb2.Booking(
        name=booking.name,
        selector=booking.selector,
        device_count=booking.device_count,
        starts_at=timestamp(booking.starts_at_sec),
        ends_at=timestamp(booking.ends_at_sec),
        holder=sendable(booking.holder),
        account=sendable(booking.account),
        booked_at=timestamp(booking.booked_at_sec),
        device_names=booking.device_names,
        leased_count=booking.leased_count,
        missing_device_names=booking.missing_device_names,
    )


def booking_from_proto(message: booking_pb2.Booking) -> Booking:
    return Booking(
        name=message.name,
        selector=message.selector,
        device_count=message.device_count,
        starts_at_sec=timestamp_sec(message.starts_at),
        ends_at_sec=timestamp_sec(message.ends_at),
        holder=message.holder,
        account=message.account,
        booked_at_sec=timestamp_sec(message.booked_at),
        device_names=tuple(message.device_names),
        leased_count=message.leased_count,
        missing_device_names=tuple(message.missing_device_names),
    )


def booking_before_to_proto(booking: BookingBefore) -> lease_pb2.BookingBefore:
    return lease_pb2.BookingBefore(
        name=booking.name,
        holder=sendable(booking.holder),
        starts_in=optional_duration(booking.starts_in_sec),
        ends_in=optional_duration(booking.ends_in_sec),
    )


def booking_before_from_proto(message: lease_pb2.BookingBefore) -> BookingBefore:
    return BookingBefore(
        name=message.name,
        holder=message.holder,
        starts_in_sec=duration_sec(message.starts_in),
        ends_in_sec=duration_sec(message.ends_in),
    )
