import datetime

from fleet.v1 import device_pb2 as _device_pb2
from fleet.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ModuleKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODULE_KIND_UNSPECIFIED: _ClassVar[ModuleKind]
    MODULE_KIND_FUNCTIONS: _ClassVar[ModuleKind]
    MODULE_KIND_RELAX_VM: _ClassVar[ModuleKind]

class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_UNSPECIFIED: _ClassVar[Stop]
    STOP_HOPELESS: _ClassVar[Stop]
    STOP_BEHIND: _ClassVar[Stop]
    STOP_SLOW: _ClassVar[Stop]

class ErrorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_KIND_UNSPECIFIED: _ClassVar[ErrorKind]
    ERROR_KIND_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_CRASHED: _ClassVar[ErrorKind]
    ERROR_KIND_OUT_OF_MEMORY: _ClassVar[ErrorKind]
    ERROR_KIND_OUT_OF_DISK: _ClassVar[ErrorKind]
    ERROR_KIND_WRONG_OUTPUT: _ClassVar[ErrorKind]
    ERROR_KIND_LOAD_FAILED: _ClassVar[ErrorKind]
    ERROR_KIND_RUN_FAILED: _ClassVar[ErrorKind]
    ERROR_KIND_BUILD_FAILED: _ClassVar[ErrorKind]
    ERROR_KIND_BUILD_TIMEOUT: _ClassVar[ErrorKind]
    ERROR_KIND_BAD_ARGUMENTS: _ClassVar[ErrorKind]
    ERROR_KIND_LEASE_ENDED: _ClassVar[ErrorKind]
    ERROR_KIND_DEVICE_FAULTED: _ClassVar[ErrorKind]
    ERROR_KIND_ARTIFACT_MISSING: _ClassVar[ErrorKind]
    ERROR_KIND_TIME_NOT_PROVEN: _ClassVar[ErrorKind]
    ERROR_KIND_POISONED: _ClassVar[ErrorKind]

class DisturbanceKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISTURBANCE_KIND_UNSPECIFIED: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_REFERENCE_DRIFT: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_CONTENTION: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_THROTTLED: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_FOREIGN_PROCESSES: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_GOVERNOR_CHANGED: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_CLOCK_FELL: _ClassVar[DisturbanceKind]
    DISTURBANCE_KIND_STILL_WARM: _ClassVar[DisturbanceKind]
MODULE_KIND_UNSPECIFIED: ModuleKind
MODULE_KIND_FUNCTIONS: ModuleKind
MODULE_KIND_RELAX_VM: ModuleKind
STOP_UNSPECIFIED: Stop
STOP_HOPELESS: Stop
STOP_BEHIND: Stop
STOP_SLOW: Stop
ERROR_KIND_UNSPECIFIED: ErrorKind
ERROR_KIND_TIMEOUT: ErrorKind
ERROR_KIND_CRASHED: ErrorKind
ERROR_KIND_OUT_OF_MEMORY: ErrorKind
ERROR_KIND_OUT_OF_DISK: ErrorKind
ERROR_KIND_WRONG_OUTPUT: ErrorKind
ERROR_KIND_LOAD_FAILED: ErrorKind
ERROR_KIND_RUN_FAILED: ErrorKind
ERROR_KIND_BUILD_FAILED: ErrorKind
ERROR_KIND_BUILD_TIMEOUT: ErrorKind
ERROR_KIND_BAD_ARGUMENTS: ErrorKind
ERROR_KIND_LEASE_ENDED: ErrorKind
ERROR_KIND_DEVICE_FAULTED: ErrorKind
ERROR_KIND_ARTIFACT_MISSING: ErrorKind
ERROR_KIND_TIME_NOT_PROVEN: ErrorKind
ERROR_KIND_POISONED: ErrorKind
DISTURBANCE_KIND_UNSPECIFIED: DisturbanceKind
DISTURBANCE_KIND_REFERENCE_DRIFT: DisturbanceKind
DISTURBANCE_KIND_CONTENTION: DisturbanceKind
DISTURBANCE_KIND_THROTTLED: DisturbanceKind
DISTURBANCE_KIND_FOREIGN_PROCESSES: DisturbanceKind
DISTURBANCE_KIND_GOVERNOR_CHANGED: DisturbanceKind
DISTURBANCE_KIND_CLOCK_FELL: DisturbanceKind
DISTURBANCE_KIND_STILL_WARM: DisturbanceKind

class Evaluator(_message.Message):
    __slots__ = ("number", "repeat", "min_repeat_ms", "limit_zero_time_iterations", "cooldown_interval_ms", "repeats_to_cooldown", "cache_flush_bytes", "flush_cpu_cache", "max_repeat", "spread_target", "give_up_above_sec", "cool_below_c", "cool_timeout_ms", "f_preproc", "look_runs", "hopeless_above_sec", "behind_above_sec")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REPEAT_FIELD_NUMBER: _ClassVar[int]
    MIN_REPEAT_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_ZERO_TIME_ITERATIONS_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_TO_COOLDOWN_FIELD_NUMBER: _ClassVar[int]
    CACHE_FLUSH_BYTES_FIELD_NUMBER: _ClassVar[int]
    FLUSH_CPU_CACHE_FIELD_NUMBER: _ClassVar[int]
    MAX_REPEAT_FIELD_NUMBER: _ClassVar[int]
    SPREAD_TARGET_FIELD_NUMBER: _ClassVar[int]
    GIVE_UP_ABOVE_SEC_FIELD_NUMBER: _ClassVar[int]
    COOL_BELOW_C_FIELD_NUMBER: _ClassVar[int]
    COOL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    F_PREPROC_FIELD_NUMBER: _ClassVar[int]
    LOOK_RUNS_FIELD_NUMBER: _ClassVar[int]
    HOPELESS_ABOVE_SEC_FIELD_NUMBER: _ClassVar[int]
    BEHIND_ABOVE_SEC_FIELD_NUMBER: _ClassVar[int]
    number: int
    repeat: int
    min_repeat_ms: int
    limit_zero_time_iterations: int
    cooldown_interval_ms: int
    repeats_to_cooldown: int
    cache_flush_bytes: int
    flush_cpu_cache: bool
    max_repeat: int
    spread_target: float
    give_up_above_sec: float
    cool_below_c: float
    cool_timeout_ms: int
    f_preproc: str
    look_runs: int
    hopeless_above_sec: float
    behind_above_sec: float
    def __init__(self, number: _Optional[int] = ..., repeat: _Optional[int] = ..., min_repeat_ms: _Optional[int] = ..., limit_zero_time_iterations: _Optional[int] = ..., cooldown_interval_ms: _Optional[int] = ..., repeats_to_cooldown: _Optional[int] = ..., cache_flush_bytes: _Optional[int] = ..., flush_cpu_cache: _Optional[bool] = ..., max_repeat: _Optional[int] = ..., spread_target: _Optional[float] = ..., give_up_above_sec: _Optional[float] = ..., cool_below_c: _Optional[float] = ..., cool_timeout_ms: _Optional[int] = ..., f_preproc: _Optional[str] = ..., look_runs: _Optional[int] = ..., hopeless_above_sec: _Optional[float] = ..., behind_above_sec: _Optional[float] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ("candidate_id", "artifact_digest", "function", "args", "evaluator", "timeout", "module_kind", "ends_batch", "operator_runs", "piece", "size_bytes", "allow_poison")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    EVALUATOR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MODULE_KIND_FIELD_NUMBER: _ClassVar[int]
    ENDS_BATCH_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_RUNS_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_POISON_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    artifact_digest: str
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Argument]
    evaluator: Evaluator
    timeout: _duration_pb2.Duration
    module_kind: ModuleKind
    ends_batch: bool
    operator_runs: int
    piece: bytes
    size_bytes: int
    allow_poison: bool
    def __init__(self, candidate_id: _Optional[str] = ..., artifact_digest: _Optional[str] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_tensor_pb2.Argument, _Mapping]]] = ..., evaluator: _Optional[_Union[Evaluator, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., module_kind: _Optional[_Union[ModuleKind, str]] = ..., ends_batch: _Optional[bool] = ..., operator_runs: _Optional[int] = ..., piece: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., allow_poison: _Optional[bool] = ...) -> None: ...

class MeasureResponse(_message.Message):
    __slots__ = ("measurement",)
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    measurement: Measurement
    def __init__(self, measurement: _Optional[_Union[Measurement, _Mapping]] = ...) -> None: ...

class Measurement(_message.Message):
    __slots__ = ("candidate_id", "run_secs", "error", "error_message", "signal", "clocks", "provenance", "time_source", "run_cycles", "operators", "stopped")
    CANDIDATE_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_SECS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    PROVENANCE_FIELD_NUMBER: _ClassVar[int]
    TIME_SOURCE_FIELD_NUMBER: _ClassVar[int]
    RUN_CYCLES_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    candidate_id: str
    run_secs: _containers.RepeatedScalarFieldContainer[float]
    error: ErrorKind
    error_message: str
    signal: int
    clocks: Clocks
    provenance: Provenance
    time_source: str
    run_cycles: _containers.RepeatedScalarFieldContainer[int]
    operators: OperatorProfile
    stopped: Stop
    def __init__(self, candidate_id: _Optional[str] = ..., run_secs: _Optional[_Iterable[float]] = ..., error: _Optional[_Union[ErrorKind, str]] = ..., error_message: _Optional[str] = ..., signal: _Optional[int] = ..., clocks: _Optional[_Union[Clocks, _Mapping]] = ..., provenance: _Optional[_Union[Provenance, _Mapping]] = ..., time_source: _Optional[str] = ..., run_cycles: _Optional[_Iterable[int]] = ..., operators: _Optional[_Union[OperatorProfile, _Mapping]] = ..., stopped: _Optional[_Union[Stop, str]] = ...) -> None: ...

class OperatorProfile(_message.Message):
    __slots__ = ("calls", "run_secs")
    CALLS_FIELD_NUMBER: _ClassVar[int]
    RUN_SECS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[OperatorCall]
    run_secs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, calls: _Optional[_Iterable[_Union[OperatorCall, _Mapping]]] = ..., run_secs: _Optional[_Iterable[float]] = ...) -> None: ...

class OperatorCall(_message.Message):
    __slots__ = ("function", "min_sec", "median_sec")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    MIN_SEC_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_SEC_FIELD_NUMBER: _ClassVar[int]
    function: str
    min_sec: float
    median_sec: float
    def __init__(self, function: _Optional[str] = ..., min_sec: _Optional[float] = ..., median_sec: _Optional[float] = ...) -> None: ...

class Clocks(_message.Message):
    __slots__ = ("wait", "load", "run")
    WAIT_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    wait: _duration_pb2.Duration
    load: _duration_pb2.Duration
    run: _duration_pb2.Duration
    def __init__(self, wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., load: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., run: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Provenance(_message.Message):
    __slots__ = ("before", "after", "worker_pid", "epoch", "pinned_cpus", "cooldown", "flushed", "bitstream_digest", "disturbances", "owner_facts_json", "jail")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PINNED_CPUS_FIELD_NUMBER: _ClassVar[int]
    COOLDOWN_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    BITSTREAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DISTURBANCES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FACTS_JSON_FIELD_NUMBER: _ClassVar[int]
    JAIL_FIELD_NUMBER: _ClassVar[int]
    before: _device_pb2.Telemetry
    after: _device_pb2.Telemetry
    worker_pid: int
    epoch: int
    pinned_cpus: _containers.RepeatedScalarFieldContainer[int]
    cooldown: _duration_pb2.Duration
    flushed: str
    bitstream_digest: str
    disturbances: _containers.RepeatedCompositeFieldContainer[Disturbance]
    owner_facts_json: str
    jail: str
    def __init__(self, before: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., after: _Optional[_Union[_device_pb2.Telemetry, _Mapping]] = ..., worker_pid: _Optional[int] = ..., epoch: _Optional[int] = ..., pinned_cpus: _Optional[_Iterable[int]] = ..., cooldown: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., flushed: _Optional[str] = ..., bitstream_digest: _Optional[str] = ..., disturbances: _Optional[_Iterable[_Union[Disturbance, _Mapping]]] = ..., owner_facts_json: _Optional[str] = ..., jail: _Optional[str] = ...) -> None: ...

class Disturbance(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: DisturbanceKind
    text: str
    def __init__(self, kind: _Optional[_Union[DisturbanceKind, str]] = ..., text: _Optional[str] = ...) -> None: ...
