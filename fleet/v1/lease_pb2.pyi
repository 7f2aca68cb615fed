import datetime

from fleet.v1 import device_pb2 as _device_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WaitReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WAIT_REASON_UNSPECIFIED: _ClassVar[WaitReason]
    WAIT_REASON_JOURNAL_FAILED: _ClassVar[WaitReason]
    WAIT_REASON_NO_DEVICE: _ClassVar[WaitReason]
    WAIT_REASON_LEASED: _ClassVar[WaitReason]
    WAIT_REASON_OFFLINE: _ClassVar[WaitReason]
    WAIT_REASON_FAULTED: _ClassVar[WaitReason]
    WAIT_REASON_QUOTA: _ClassVar[WaitReason]
    WAIT_REASON_QUEUED: _ClassVar[WaitReason]
    WAIT_REASON_SET: _ClassVar[WaitReason]
    WAIT_REASON_BOOKED: _ClassVar[WaitReason]
    WAIT_REASON_MARKED: _ClassVar[WaitReason]

class QuotaLimit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    QUOTA_LIMIT_UNSPECIFIED: _ClassVar[QuotaLimit]
    QUOTA_LIMIT_LEASES: _ClassVar[QuotaLimit]
    QUOTA_LIMIT_DEVICE_TIME: _ClassVar[QuotaLimit]

class LeaseClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_CLASS_UNSPECIFIED: _ClassVar[LeaseClass]
    LEASE_CLASS_INTERACTIVE: _ClassVar[LeaseClass]
    LEASE_CLASS_NORMAL: _ClassVar[LeaseClass]
    LEASE_CLASS_BATCH: _ClassVar[LeaseClass]
WAIT_REASON_UNSPECIFIED: WaitReason
WAIT_REASON_JOURNAL_FAILED: WaitReason
WAIT_REASON_NO_DEVICE: WaitReason
WAIT_REASON_LEASED: WaitReason
WAIT_REASON_OFFLINE: WaitReason
WAIT_REASON_FAULTED: WaitReason
WAIT_REASON_QUOTA: WaitReason
WAIT_REASON_QUEUED: WaitReason
WAIT_REASON_SET: WaitReason
WAIT_REASON_BOOKED: WaitReason
WAIT_REASON_MARKED: WaitReason
QUOTA_LIMIT_UNSPECIFIED: QuotaLimit
QUOTA_LIMIT_LEASES: QuotaLimit
QUOTA_LIMIT_DEVICE_TIME: QuotaLimit
LEASE_CLASS_UNSPECIFIED: LeaseClass
LEASE_CLASS_INTERACTIVE: LeaseClass
LEASE_CLASS_NORMAL: LeaseClass
LEASE_CLASS_BATCH: LeaseClass

class Lease(_message.Message):
    __slots__ = ("name", "device_name", "epoch", "holder", "granted_at", "expires_at", "ends_at", "purpose", "holder_note", "account", "lease_class")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    ENDS_AT_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLASS_FIELD_NUMBER: _ClassVar[int]
    name: str
    device_name: str
    epoch: int
    holder: str
    granted_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    ends_at: _timestamp_pb2.Timestamp
    purpose: str
    holder_note: str
    account: str
    lease_class: LeaseClass
    def __init__(self, name: _Optional[str] = ..., device_name: _Optional[str] = ..., epoch: _Optional[int] = ..., holder: _Optional[str] = ..., granted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., purpose: _Optional[str] = ..., holder_note: _Optional[str] = ..., account: _Optional[str] = ..., lease_class: _Optional[_Union[LeaseClass, str]] = ...) -> None: ...

class LeaseClaims(_message.Message):
    __slots__ = ("lease_name", "device_name", "epoch", "holder", "issued_at", "expires_at", "nonce", "holder_key_id")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    device_name: str
    epoch: int
    holder: str
    issued_at: _timestamp_pb2.Timestamp
    expires_at: _timestamp_pb2.Timestamp
    nonce: str
    holder_key_id: str
    def __init__(self, lease_name: _Optional[str] = ..., device_name: _Optional[str] = ..., epoch: _Optional[int] = ..., holder: _Optional[str] = ..., issued_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., nonce: _Optional[str] = ..., holder_key_id: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("claims", "signature")
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    claims: bytes
    signature: bytes
    def __init__(self, claims: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class PendingRequest(_message.Message):
    __slots__ = ("request_id", "holder", "selector", "priority", "asked_at", "position", "reason", "purpose", "holder_note", "terms", "account", "wait", "forecast")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NOTE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    FORECAST_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    holder: str
    selector: str
    priority: int
    asked_at: _timestamp_pb2.Timestamp
    position: int
    reason: str
    purpose: str
    holder_note: str
    terms: Acquire
    account: str
    wait: Wait
    forecast: Forecast
    def __init__(self, request_id: _Optional[str] = ..., holder: _Optional[str] = ..., selector: _Optional[str] = ..., priority: _Optional[int] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., position: _Optional[int] = ..., reason: _Optional[str] = ..., purpose: _Optional[str] = ..., holder_note: _Optional[str] = ..., terms: _Optional[_Union[Acquire, _Mapping]] = ..., account: _Optional[str] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., forecast: _Optional[_Union[Forecast, _Mapping]] = ...) -> None: ...

class Forecast(_message.Message):
    __slots__ = ("likely_from", "expected", "likely_by")
    LIKELY_FROM_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    LIKELY_BY_FIELD_NUMBER: _ClassVar[int]
    likely_from: _timestamp_pb2.Timestamp
    expected: _timestamp_pb2.Timestamp
    likely_by: _timestamp_pb2.Timestamp
    def __init__(self, likely_from: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expected: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., likely_by: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason", "match_count", "device_name", "detail", "quota", "leases", "clauses", "ready_count", "booking")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    QUOTA_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CLAUSES_FIELD_NUMBER: _ClassVar[int]
    READY_COUNT_FIELD_NUMBER: _ClassVar[int]
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    reason: WaitReason
    match_count: int
    device_name: str
    detail: str
    quota: QuotaUse
    leases: _containers.RepeatedCompositeFieldContainer[LeaseBefore]
    clauses: _containers.RepeatedCompositeFieldContainer[ClauseCount]
    ready_count: int
    booking: BookingBefore
    def __init__(self, reason: _Optional[_Union[WaitReason, str]] = ..., match_count: _Optional[int] = ..., device_name: _Optional[str] = ..., detail: _Optional[str] = ..., quota: _Optional[_Union[QuotaUse, _Mapping]] = ..., leases: _Optional[_Iterable[_Union[LeaseBefore, _Mapping]]] = ..., clauses: _Optional[_Iterable[_Union[ClauseCount, _Mapping]]] = ..., ready_count: _Optional[int] = ..., booking: _Optional[_Union[BookingBefore, _Mapping]] = ...) -> None: ...

class QuotaUse(_message.Message):
    __slots__ = ("account", "lease_class", "limit", "leases", "most_leases", "used_today", "most_per_day")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLASS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    MOST_LEASES_FIELD_NUMBER: _ClassVar[int]
    USED_TODAY_FIELD_NUMBER: _ClassVar[int]
    MOST_PER_DAY_FIELD_NUMBER: _ClassVar[int]
    account: str
    lease_class: LeaseClass
    limit: QuotaLimit
    leases: int
    most_leases: int
    used_today: _duration_pb2.Duration
    most_per_day: _duration_pb2.Duration
    def __init__(self, account: _Optional[str] = ..., lease_class: _Optional[_Union[LeaseClass, str]] = ..., limit: _Optional[_Union[QuotaLimit, str]] = ..., leases: _Optional[int] = ..., most_leases: _Optional[int] = ..., used_today: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., most_per_day: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class LeaseBefore(_message.Message):
    __slots__ = ("device_name", "holder", "holder_note", "account", "lease_class", "held")
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NOTE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLASS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    holder: str
    holder_note: str
    account: str
    lease_class: LeaseClass
    held: _duration_pb2.Duration
    def __init__(self, device_name: _Optional[str] = ..., holder: _Optional[str] = ..., holder_note: _Optional[str] = ..., account: _Optional[str] = ..., lease_class: _Optional[_Union[LeaseClass, str]] = ..., held: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class BookingBefore(_message.Message):
    __slots__ = ("name", "holder", "starts_in", "ends_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    STARTS_IN_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    holder: str
    starts_in: _duration_pb2.Duration
    ends_in: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., holder: _Optional[str] = ..., starts_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ends_in: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ClauseCount(_message.Message):
    __slots__ = ("clause", "device_count")
    CLAUSE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_COUNT_FIELD_NUMBER: _ClassVar[int]
    clause: str
    device_count: int
    def __init__(self, clause: _Optional[str] = ..., device_count: _Optional[int] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("request_id", "selector", "priority", "ttl", "max_duration", "wait_timeout", "purpose", "prefer", "bid", "lease_class", "continues", "account", "also", "booking", "even_if")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SELECTOR_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_DURATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    PURPOSE_FIELD_NUMBER: _ClassVar[int]
    PREFER_FIELD_NUMBER: _ClassVar[int]
    BID_FIELD_NUMBER: _ClassVar[int]
    LEASE_CLASS_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    BOOKING_FIELD_NUMBER: _ClassVar[int]
    EVEN_IF_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    selector: str
    priority: int
    ttl: _duration_pb2.Duration
    max_duration: _duration_pb2.Duration
    wait_timeout: _duration_pb2.Duration
    purpose: str
    prefer: str
    bid: float
    lease_class: LeaseClass
    continues: str
    account: str
    also: _containers.RepeatedScalarFieldContainer[str]
    booking: str
    even_if: _device_pb2.HealthState
    def __init__(self, request_id: _Optional[str] = ..., selector: _Optional[str] = ..., priority: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., purpose: _Optional[str] = ..., prefer: _Optional[str] = ..., bid: _Optional[float] = ..., lease_class: _Optional[_Union[LeaseClass, str]] = ..., continues: _Optional[str] = ..., account: _Optional[str] = ..., also: _Optional[_Iterable[str]] = ..., booking: _Optional[str] = ..., even_if: _Optional[_Union[_device_pb2.HealthState, str]] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("request_id", "lease", "token", "device", "member")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    lease: Lease
    token: Token
    device: _device_pb2.Device
    member: int
    def __init__(self, request_id: _Optional[str] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., device: _Optional[_Union[_device_pb2.Device, _Mapping]] = ..., member: _Optional[int] = ...) -> None: ...
