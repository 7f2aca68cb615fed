import datetime

from fleet.v1 import device_pb2 as _device_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachNoticeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTACH_NOTICE_KIND_UNSPECIFIED: _ClassVar[AttachNoticeKind]
    ATTACH_NOTICE_KIND_NAME_WANTED: _ClassVar[AttachNoticeKind]
ATTACH_NOTICE_KIND_UNSPECIFIED: AttachNoticeKind
ATTACH_NOTICE_KIND_NAME_WANTED: AttachNoticeKind

class AttachRequest(_message.Message):
    __slots__ = ("hello", "reports", "found_poison")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    FOUND_POISON_FIELD_NUMBER: _ClassVar[int]
    hello: AgentHello
    reports: _containers.RepeatedCompositeFieldContainer[DeviceReport]
    found_poison: _containers.RepeatedCompositeFieldContainer[FoundPoison]
    def __init__(self, hello: _Optional[_Union[AgentHello, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[DeviceReport, _Mapping]]] = ..., found_poison: _Optional[_Iterable[_Union[FoundPoison, _Mapping]]] = ...) -> None: ...

class FoundPoison(_message.Message):
    __slots__ = ("digest", "device_name")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    digest: str
    device_name: str
    def __init__(self, digest: _Optional[str] = ..., device_name: _Optional[str] = ...) -> None: ...

class AgentHello(_message.Message):
    __slots__ = ("agent_id", "address", "devices", "version", "relay_address", "term_proof")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    TERM_PROOF_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    address: str
    devices: _containers.RepeatedCompositeFieldContainer[_device_pb2.Device]
    version: str
    relay_address: str
    term_proof: bytes
    def __init__(self, agent_id: _Optional[str] = ..., address: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[_device_pb2.Device, _Mapping]]] = ..., version: _Optional[str] = ..., relay_address: _Optional[str] = ..., term_proof: _Optional[bytes] = ...) -> None: ...

class DeviceReport(_message.Message):
    __slots__ = ("device_name", "telemetry", "is_healthy", "reason", "bitstream_digest", "highest_epoch", "fenced_epoch")
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    IS_HEALTHY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BITSTREAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    FENCED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    telemetry: _device_pb2.Telemetry
    is_healthy: bool
    reason: str
    bitstream_digest: str
    highest_epoch: int
    fenced_epoch: int
    def __init__(self, device_name: _Optional[str] = ..., telemetry: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., is_healthy: _Optional[bool] = ..., reason: _Optional[str] = ..., bitstream_digest: _Optional[str] = ..., highest_epoch: _Optional[int] = ..., fenced_epoch: _Optional[int] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("tracker_time", "public_key", "fences", "notices", "poison", "forgotten_poison", "term_proof", "other_tracker")
    TRACKER_TIME_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    POISON_FIELD_NUMBER: _ClassVar[int]
    FORGOTTEN_POISON_FIELD_NUMBER: _ClassVar[int]
    TERM_PROOF_FIELD_NUMBER: _ClassVar[int]
    OTHER_TRACKER_FIELD_NUMBER: _ClassVar[int]
    tracker_time: _timestamp_pb2.Timestamp
    public_key: bytes
    fences: _containers.RepeatedCompositeFieldContainer[Fence]
    notices: _containers.RepeatedCompositeFieldContainer[AttachNotice]
    poison: _containers.RepeatedCompositeFieldContainer[Poison]
    forgotten_poison: _containers.RepeatedScalarFieldContainer[str]
    term_proof: bytes
    other_tracker: str
    def __init__(self, tracker_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., public_key: _Optional[bytes] = ..., fences: _Optional[_Iterable[_Union[Fence, _Mapping]]] = ..., notices: _Optional[_Iterable[_Union[AttachNotice, _Mapping]]] = ..., poison: _Optional[_Iterable[_Union[Poison, _Mapping]]] = ..., forgotten_poison: _Optional[_Iterable[str]] = ..., term_proof: _Optional[bytes] = ..., other_tracker: _Optional[str] = ...) -> None: ...

class Poison(_message.Message):
    __slots__ = ("digest", "expires")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    digest: str
    expires: _timestamp_pb2.Timestamp
    def __init__(self, digest: _Optional[str] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class AttachNotice(_message.Message):
    __slots__ = ("kind", "device_name", "other_address", "other_key_id")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    OTHER_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    kind: AttachNoticeKind
    device_name: str
    other_address: str
    other_key_id: str
    def __init__(self, kind: _Optional[_Union[AttachNoticeKind, str]] = ..., device_name: _Optional[str] = ..., other_address: _Optional[str] = ..., other_key_id: _Optional[str] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("device_name", "epoch", "nonce", "live_lease_name", "is_reset")
    DEVICE_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    LIVE_LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    IS_RESET_FIELD_NUMBER: _ClassVar[int]
    device_name: str
    epoch: int
    nonce: str
    live_lease_name: str
    is_reset: bool
    def __init__(self, device_name: _Optional[str] = ..., epoch: _Optional[int] = ..., nonce: _Optional[str] = ..., live_lease_name: _Optional[str] = ..., is_reset: _Optional[bool] = ...) -> None: ...
