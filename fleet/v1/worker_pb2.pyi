from fleet.v1 import measurement_pb2 as _measurement_pb2
from fleet.v1 import session_service_pb2 as _session_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRequest(_message.Message):
    __slots__ = ("measure", "call", "reference", "artifact_path")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_PATH_FIELD_NUMBER: _ClassVar[int]
    measure: _measurement_pb2.MeasureRequest
    call: _session_service_pb2.CallRequest
    reference: ReferenceRequest
    artifact_path: str
    def __init__(self, measure: _Optional[_Union[_measurement_pb2.MeasureRequest, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallRequest, _Mapping]] = ..., reference: _Optional[_Union[ReferenceRequest, _Mapping]] = ..., artifact_path: _Optional[str] = ...) -> None: ...

class WorkerResponse(_message.Message):
    __slots__ = ("measurement", "call", "reference", "is_last")
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    measurement: _measurement_pb2.Measurement
    call: _session_service_pb2.CallResponse
    reference: ReferenceResponse
    is_last: bool
    def __init__(self, measurement: _Optional[_Union[_measurement_pb2.Measurement, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallResponse, _Mapping]] = ..., reference: _Optional[_Union[ReferenceResponse, _Mapping]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class ReferenceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReferenceResponse(_message.Message):
    __slots__ = ("secs",)
    SECS_FIELD_NUMBER: _ClassVar[int]
    secs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, secs: _Optional[_Iterable[float]] = ...) -> None: ...
