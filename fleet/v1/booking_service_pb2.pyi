import datetime

from fleet.v1 import booking_pb2 as _booking_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BookRequest(_message.Message):
    __slots__ = ("request_id", "selector", "device_count", "starts_at", "ends_at", "holder")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STARTS_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    selector: str
    device_count: int
    starts_at: _timestamp_pb2.Timestamp
    ends_at: _timestamp_pb2.Timestamp
    holder: str
    def __init__(self, request_id: _Optional[str] = ..., selector: _Optional[str] = ..., device_count: _Optional[int] = ..., starts_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., holder: _Optional[str] = ...) -> None: ...

class BookResponse(_message.Message):
    __slots__ = ("booking",)
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    booking: _booking_pb2.Booking
    def __init__(self, booking: _Optional[_Union[_booking_pb2.Booking, _Mapping]] = ...) -> None: ...

class ListBookingsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBookingsResponse(_message.Message):
    __slots__ = ("bookings",)
    BOOKINGS_FIELD_NUMBER: _ClassVar[int]
    bookings: _containers.RepeatedCompositeFieldContainer[_booking_pb2.Booking]
    def __init__(self, bookings: _Optional[_Iterable[_Union[_booking_pb2.Booking, _Mapping]]] = ...) -> None: ...

class CancelBookingRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CancelBookingResponse(_message.Message):
    __slots__ = ("booking",)
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    booking: _booking_pb2.Booking
    def __init__(self, booking: _Optional[_Union[_booking_pb2.Booking, _Mapping]] = ...) -> None: ...
