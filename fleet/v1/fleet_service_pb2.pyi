import datetime

from fleet.v1 import booking_pb2 as _booking_pb2
from fleet.v1 import device_pb2 as _device_pb2
from fleet.v1 import job_pb2 as _job_pb2
from fleet.v1 import lease_pb2 as _lease_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UsageKey(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    USAGE_KEY_UNSPECIFIED: _ClassVar[UsageKey]
    USAGE_KEY_ACCOUNT: _ClassVar[UsageKey]
    USAGE_KEY_DEVICE: _ClassVar[UsageKey]
    USAGE_KEY_CLASS: _ClassVar[UsageKey]
USAGE_KEY_UNSPECIFIED: UsageKey
USAGE_KEY_ACCOUNT: UsageKey
USAGE_KEY_DEVICE: UsageKey
USAGE_KEY_CLASS: UsageKey

class GetFleetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetFleetResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class WatchFleetRequest(_message.Message):
    __slots__ = ("min_interval",)
    MIN_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    min_interval: _duration_pb2.Duration
    def __init__(self, min_interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchFleetResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: Snapshot
    def __init__(self, snapshot: _Optional[_Union[Snapshot, _Mapping]] = ...) -> None: ...

class CheckSelectorRequest(_message.Message):
    __slots__ = ("selector",)
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    selector: str
    def __init__(self, selector: _Optional[str] = ...) -> None: ...

class CheckSelectorResponse(_message.Message):
    __slots__ = ("device_count",)
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    device_count: int
    def __init__(self, device_count: _Optional[int] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("device_name",)
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    def __init__(self, device_name: _Optional[str] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("samples",)
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    samples: _containers.RepeatedCompositeFieldContainer[_device_pb2.Telemetry]
    def __init__(self, samples: _Optional[_Iterable[_Union[_device_pb2.Telemetry, _Mapping]]] = ...) -> None: ...

class GetUsageRequest(_message.Message):
    __slots__ = ("by", "since")
    BY_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    by: UsageKey
    since: _duration_pb2.Duration
    def __init__(self, by: _Optional[_Union[UsageKey, str]] = ..., since: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class GetUsageResponse(_message.Message):
    __slots__ = ("since", "rows")
    SINCE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    since: _timestamp_pb2.Timestamp
    rows: _containers.RepeatedCompositeFieldContainer[UsageRow]
    def __init__(self, since: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[UsageRow, _Mapping]]] = ...) -> None: ...

class UsageRow(_message.Message):
    __slots__ = ("key", "holder", "lease_count", "device_time", "mean_wait")
    KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TIME_FIELD_NUMBER: _ClassVar[int]
    MEAN_WAIT_FIELD_NUMBER: _ClassVar[int]
    key: str
    holder: str
    lease_count: int
    device_time: _duration_pb2.Duration
    mean_wait: _duration_pb2.Duration
    def __init__(self, key: _Optional[str] = ..., holder: _Optional[str] = ..., lease_count: _Optional[int] = ..., device_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., mean_wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("version", "taken_at", "devices", "leases", "requests", "request_count", "jobs", "tracker_version", "started_at", "grant_count", "bookings", "optimizers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TRACKER_VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    GRANT_COUNT_FIELD_NUMBER: _ClassVar[int]
    BOOKINGS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    taken_at: _timestamp_pb2.Timestamp
    devices: _containers.RepeatedCompositeFieldContainer[_device_pb2.Device]
    leases: _containers.RepeatedCompositeFieldContainer[_lease_pb2.Lease]
    requests: _containers.RepeatedCompositeFieldContainer[_lease_pb2.PendingRequest]
    request_count: int
    jobs: _containers.RepeatedCompositeFieldContainer[_job_pb2.Job]
    tracker_version: str
    started_at: _timestamp_pb2.Timestamp
    grant_count: int
    bookings: _containers.RepeatedCompositeFieldContainer[_booking_pb2.Booking]
    optimizers: _containers.RepeatedCompositeFieldContainer[_job_pb2.Optimizer]
    def __init__(self, version: _Optional[int] = ..., taken_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[_device_pb2.Device, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[_lease_pb2.Lease, _Mapping]]] = ..., requests: _Optional[_Iterable[_Union[_lease_pb2.PendingRequest, _Mapping]]] = ..., request_count: _Optional[int] = ..., jobs: _Optional[_Iterable[_Union[_job_pb2.Job, _Mapping]]] = ..., tracker_version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., grant_count: _Optional[int] = ..., bookings: _Optional[_Iterable[_Union[_booking_pb2.Booking, _Mapping]]] = ..., optimizers: _Optional[_Iterable[_Union[_job_pb2.Optimizer, _Mapping]]] = ...) -> None: ...
