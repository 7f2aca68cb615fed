from fleet.v1 import measurement_pb2 as _measurement_pb2
from fleet.v1 import session_service_pb2 as _session_service_pb2
from fleet.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerRequest(_message.Message):
    __slots__ = ("measure", "call", "reference", "proof", "rpc_session", "artifact_path")
    MEASURE_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RPC_SESSION_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_PATH_FIELD_NUMBER: _ClassVar[int]
    measure: _measurement_pb2.MeasureRequest
    call: _session_service_pb2.CallRequest
    reference: ReferenceRequest
    proof: ProofStep
    rpc_session: RpcSession
    artifact_path: str
    def __init__(self, measure: _Optional[_Union[_measurement_pb2.MeasureRequest, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallRequest, _Mapping]] = ..., reference: _Optional[_Union[ReferenceRequest, _Mapping]] = ..., proof: _Optional[_Union[ProofStep, _Mapping]] = ..., rpc_session: _Optional[_Union[RpcSession, _Mapping]] = ..., artifact_path: _Optional[str] = ...) -> None: ...

class WorkerResponse(_message.Message):
    __slots__ = ("measurement", "call", "reference", "proof", "rpc_session", "is_last")
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    RPC_SESSION_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    measurement: _measurement_pb2.Measurement
    call: _session_service_pb2.CallResponse
    reference: ReferenceResponse
    proof: ProofStepResponse
    rpc_session: RpcSessionResponse
    is_last: bool
    def __init__(self, measurement: _Optional[_Union[_measurement_pb2.Measurement, _Mapping]] = ..., call: _Optional[_Union[_session_service_pb2.CallResponse, _Mapping]] = ..., reference: _Optional[_Union[ReferenceResponse, _Mapping]] = ..., proof: _Optional[_Union[ProofStepResponse, _Mapping]] = ..., rpc_session: _Optional[_Union[RpcSessionResponse, _Mapping]] = ..., is_last: _Optional[bool] = ...) -> None: ...

class ReferenceRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReferenceResponse(_message.Message):
    __slots__ = ("secs",)
    SECS_FIELD_NUMBER: _ClassVar[int]
    secs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, secs: _Optional[_Iterable[float]] = ...) -> None: ...

class ProofStep(_message.Message):
    __slots__ = ("open", "load", "row", "again")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    open: _session_service_pb2.ProveRequest
    load: ProofLoad
    row: ProofRow
    again: ProofAgain
    def __init__(self, open: _Optional[_Union[_session_service_pb2.ProveRequest, _Mapping]] = ..., load: _Optional[_Union[ProofLoad, _Mapping]] = ..., row: _Optional[_Union[ProofRow, _Mapping]] = ..., again: _Optional[_Union[ProofAgain, _Mapping]] = ...) -> None: ...

class ProofLoad(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProofRow(_message.Message):
    __slots__ = ("seed", "calls")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    seed: bytes
    calls: int
    def __init__(self, seed: _Optional[bytes] = ..., calls: _Optional[int] = ...) -> None: ...

class ProofAgain(_message.Message):
    __slots__ = ("seed", "call")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    seed: bytes
    call: int
    def __init__(self, seed: _Optional[bytes] = ..., call: _Optional[int] = ...) -> None: ...

class ProofStepResponse(_message.Message):
    __slots__ = ("digests", "outputs", "error", "error_message", "impossible")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IMPOSSIBLE_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    error: _measurement_pb2.ErrorKind
    error_message: str
    impossible: str
    def __init__(self, digests: _Optional[bytes] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., error: _Optional[_Union[_measurement_pb2.ErrorKind, str]] = ..., error_message: _Optional[str] = ..., impossible: _Optional[str] = ...) -> None: ...

class RpcSession(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RpcSessionResponse(_message.Message):
    __slots__ = ("impossible",)
    IMPOSSIBLE_FIELD_NUMBER: _ClassVar[int]
    impossible: str
    def __init__(self, impossible: _Optional[str] = ...) -> None: ...
