from fleet.v1 import measurement_pb2 as _measurement_pb2
from fleet.v1 import session_service_pb2 as _session_service_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRequest(_message.Message):
    __slots__ = ("measure", "call", "artifact_path")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_PATH_FIELD_NUMBER: _ClassVar[int]
    measure: _measurement_pb2.MeasureRequest
    call: _session_service_pb2.CallRequest
    artifact_path: str
    def __init__(self, measure: _Optional[_Union[_measurement_pb2.MeasureRequest, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallRequest, _Mapping]] = ..., artifact_path: _Optional[str] = ...) -> None: ...

class WorkerResponse(_message.Message):
    __slots__ = ("measurement", "call")
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    measurement: _measurement_pb2.Measurement
    call: _session_service_pb2.CallResponse
    def __init__(self, measurement: _Optional[_Union[_measurement_pb2.Measurement, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallResponse, _Mapping]] = ...) -> None: ...
