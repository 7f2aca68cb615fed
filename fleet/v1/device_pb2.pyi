import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealthState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HEALTH_STATE_UNSPECIFIED: _ClassVar[HealthState]
    HEALTH_STATE_GOOD: _ClassVar[HealthState]
    HEALTH_STATE_SUSPECT: _ClassVar[HealthState]
    HEALTH_STATE_DRAINING: _ClassVar[HealthState]
    HEALTH_STATE_QUARANTINED: _ClassVar[HealthState]
    HEALTH_STATE_MAINTENANCE: _ClassVar[HealthState]
    HEALTH_STATE_RETIRED: _ClassVar[HealthState]

class DeviceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_STATE_UNSPECIFIED: _ClassVar[DeviceState]
    DEVICE_STATE_AVAILABLE: _ClassVar[DeviceState]
    DEVICE_STATE_LEASED: _ClassVar[DeviceState]
    DEVICE_STATE_OFFLINE: _ClassVar[DeviceState]
    DEVICE_STATE_FAULTED: _ClassVar[DeviceState]

class RuntimeKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUNTIME_KIND_UNSPECIFIED: _ClassVar[RuntimeKind]
    RUNTIME_KIND_TVM: _ClassVar[RuntimeKind]
    RUNTIME_KIND_PLAIN: _ClassVar[RuntimeKind]
    RUNTIME_KIND_TVM_RPC: _ClassVar[RuntimeKind]
HEALTH_STATE_UNSPECIFIED: HealthState
HEALTH_STATE_GOOD: HealthState
HEALTH_STATE_SUSPECT: HealthState
HEALTH_STATE_DRAINING: HealthState
HEALTH_STATE_QUARANTINED: HealthState
HEALTH_STATE_MAINTENANCE: HealthState
HEALTH_STATE_RETIRED: HealthState
DEVICE_STATE_UNSPECIFIED: DeviceState
DEVICE_STATE_AVAILABLE: DeviceState
DEVICE_STATE_LEASED: DeviceState
DEVICE_STATE_OFFLINE: DeviceState
DEVICE_STATE_FAULTED: DeviceState
RUNTIME_KIND_UNSPECIFIED: RuntimeKind
RUNTIME_KIND_TVM: RuntimeKind
RUNTIME_KIND_PLAIN: RuntimeKind
RUNTIME_KIND_TVM_RPC: RuntimeKind

class Device(_message.Message):
    __slots__ = ("name", "inventory", "state", "address", "lease_name", "epoch", "telemetry", "reason", "attached_at", "holder", "granted_at", "bitstream_digest", "agent_key_id", "holder_note", "health_mark", "relay_address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_AT_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    BITSTREAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    AGENT_KEY_ID_FIELD_NUMBER: _ClassVar[int]
    HOLDER_NOTE_FIELD_NUMBER: _ClassVar[int]
    HEALTH_MARK_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    inventory: Inventory
    state: DeviceState
    address: str
    lease_name: str
    epoch: int
    telemetry: Telemetry
    reason: str
    attached_at: _timestamp_pb2.Timestamp
    holder: str
    granted_at: _timestamp_pb2.Timestamp
    bitstream_digest: str
    agent_key_id: str
    holder_note: str
    health_mark: HealthMark
    relay_address: str
    def __init__(self, name: _Optional[str] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., state: _Optional[_Union[DeviceState, str]] = ..., address: _Optional[str] = ..., lease_name: _Optional[str] = ..., epoch: _Optional[int] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., reason: _Optional[str] = ..., attached_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., holder: _Optional[str] = ..., granted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., bitstream_digest: _Optional[str] = ..., agent_key_id: _Optional[str] = ..., holder_note: _Optional[str] = ..., health_mark: _Optional[_Union[HealthMark, _Mapping]] = ..., relay_address: _Optional[str] = ...) -> None: ...

class HealthMark(_message.Message):
    __slots__ = ("state", "by", "at", "reason", "until")
    STATE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    state: HealthState
    by: str
    at: _timestamp_pb2.Timestamp
    reason: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, state: _Optional[_Union[HealthState, str]] = ..., by: _Optional[str] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reason: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("kind", "labels", "target_json", "device_model", "host_fingerprint", "memory_bytes", "core_count", "tvm_version", "facts", "is_simulated", "runtime", "has_before_lease")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KIND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TARGET_JSON_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
    HOST_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CORE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TVM_VERSION_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    IS_SIMULATED_FIELD_NUMBER: _ClassVar[int]
    RUNTIME_FIELD_NUMBER: _ClassVar[int]
    HAS_BEFORE_LEASE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    labels: _containers.ScalarMap[str, str]
    target_json: str
    device_model: str
    host_fingerprint: str
    memory_bytes: int
    core_count: int
    tvm_version: str
    facts: _containers.ScalarMap[str, str]
    is_simulated: bool
    runtime: RuntimeKind
    has_before_lease: bool
    def __init__(self, kind: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., target_json: _Optional[str] = ..., device_model: _Optional[str] = ..., host_fingerprint: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., core_count: _Optional[int] = ..., tvm_version: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ..., is_simulated: _Optional[bool] = ..., runtime: _Optional[_Union[RuntimeKind, str]] = ..., has_before_lease: _Optional[bool] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("read_at", "temp_c", "freq_hz", "governor", "load_1min", "cpu_busy", "trials", "trials_per_min", "last_error", "memory_available_bytes", "power_w", "throttle_reasons", "battery_percent", "foreign_processes", "reference_sec")
    READ_AT_FIELD_NUMBER: _ClassVar[int]
    TEMP_C_FIELD_NUMBER: _ClassVar[int]
    FREQ_HZ_FIELD_NUMBER: _ClassVar[int]
    GOVERNOR_FIELD_NUMBER: _ClassVar[int]
    LOAD_1MIN_FIELD_NUMBER: _ClassVar[int]
    CPU_BUSY_FIELD_NUMBER: _ClassVar[int]
    TRIALS_FIELD_NUMBER: _ClassVar[int]
    TRIALS_PER_MIN_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    BATTERY_PERCENT_FIELD_NUMBER: _ClassVar[int]
    FOREIGN_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_SEC_FIELD_NUMBER: _ClassVar[int]
    read_at: _timestamp_pb2.Timestamp
    temp_c: float
    freq_hz: float
    governor: str
    load_1min: float
    cpu_busy: float
    trials: int
    trials_per_min: float
    last_error: str
    memory_available_bytes: int
    power_w: float
    throttle_reasons: _containers.RepeatedScalarFieldContainer[str]
    battery_percent: float
    foreign_processes: int
    reference_sec: float
    def __init__(self, read_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., temp_c: _Optional[float] = ..., freq_hz: _Optional[float] = ..., governor: _Optional[str] = ..., load_1min: _Optional[float] = ..., cpu_busy: _Optional[float] = ..., trials: _Optional[int] = ..., trials_per_min: _Optional[float] = ..., last_error: _Optional[str] = ..., memory_available_bytes: _Optional[int] = ..., power_w: _Optional[float] = ..., throttle_reasons: _Optional[_Iterable[str]] = ..., battery_percent: _Optional[float] = ..., foreign_processes: _Optional[int] = ..., reference_sec: _Optional[float] = ...) -> None: ...
