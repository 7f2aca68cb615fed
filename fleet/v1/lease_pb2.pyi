import datetime

from fleet.v1 import device_pb2 as _device_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LeaseClass(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEASE_CLASS_UNSPECIFIED: _ClassVar[LeaseClass]
    LEASE_CLASS_INTERACTIVE: _ClassVar[LeaseClass]
    LEASE_CLASS_NORMAL: _ClassVar[LeaseClass]
    LEASE_CLASS_BATCH: _ClassVar[LeaseClass]
LEASE_CLASS_UNSPECIFIED: LeaseClass
LEASE_CLASS_INTERACTIVE: LeaseClass
LEASE_CLASS_NORMAL: LeaseClass
LEASE_CLASS_BATCH: LeaseClass

class Lease(_message.Message):
    __slots__ = ("name", "device_name", "epoch", "holder", "granted_at", "expires_at", "ends_at", "purpose", "holder_note", "account")
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
    def __init__(self, name: _Optional[str] = ..., device_name: _Optional[str] = ..., epoch: _Optional[int] = ..., holder: _Optional[str] = ..., granted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ends_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., purpose: _Optional[str] = ..., holder_note: _Optional[str] = ..., account: _Optional[str] = ...) -> None: ...

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
    __slots__ = ("request_id", "holder", "selector", "priority", "asked_at", "position", "reason", "purpose", "holder_note", "terms", "account")
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
    def __init__(self, request_id: _Optional[str] = ..., holder: _Optional[str] = ..., selector: _Optional[str] = ..., priority: _Optional[int] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., position: _Optional[int] = ..., reason: _Optional[str] = ..., purpose: _Optional[str] = ..., holder_note: _Optional[str] = ..., terms: _Optional[_Union[Acquire, _Mapping]] = ..., account: _Optional[str] = ...) -> None: ...

class Acquire(_message.Message):
    __slots__ = ("request_id", "selector", "priority", "ttl", "max_duration", "wait_timeout", "purpose", "prefer", "bid", "lease_class", "continues", "account")
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
    def __init__(self, request_id: _Optional[str] = ..., selector: _Optional[str] = ..., priority: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_duration: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait_timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., purpose: _Optional[str] = ..., prefer: _Optional[str] = ..., bid: _Optional[float] = ..., lease_class: _Optional[_Union[LeaseClass, str]] = ..., continues: _Optional[str] = ..., account: _Optional[str] = ...) -> None: ...

class Granted(_message.Message):
    __slots__ = ("request_id", "lease", "token", "device")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    lease: Lease
    token: Token
    device: _device_pb2.Device
    def __init__(self, request_id: _Optional[str] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ..., token: _Optional[_Union[Token, _Mapping]] = ..., device: _Optional[_Union[_device_pb2.Device, _Mapping]] = ...) -> None: ...
