import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Booking(_message.Message):
    __slots__ = ("name", "selector", "device_count", "starts_at", "ends_at", "holder", "account", "booked_at", "device_names", "leased_count", "missing_device_names")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    STARTS_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    BOOKED_AT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAMES_FIELD_NUMBER: _ClassVar[int]
    LEASED_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSING_DEVICE_NAMES_FIELD_NUMBER: _ClassVar[int]
    name: str
    selector: str
    device_count: int
    starts_at: _timestamp_pb2.Timestamp
    ends_at: _timestamp_pb2.Timestamp
    holder: str
    account: str
    booked_at: _timestamp_pb2.Timestamp
    device_names: _containers.RepeatedScalarFieldContainer[str]
    leased_count: int
    missing_device_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., selector: _Optional[str] = ..., device_count: _Optional[int] = ..., starts_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., holder: _Optional[str] = ..., account: _Optional[str] = ..., booked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., device_names: _Optional[_Iterable[str]] = ..., leased_count: _Optional[int] = ..., missing_device_names: _Optional[_Iterable[str]] = ...) -> None: ...
