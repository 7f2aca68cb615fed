import datetime

from fleet.v1 import measurement_pb2 as _measurement_pb2
from fleet.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ArtifactKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ARTIFACT_KIND_UNSPECIFIED: _ClassVar[ArtifactKind]
    ARTIFACT_KIND_MODULE: _ClassVar[ArtifactKind]
    ARTIFACT_KIND_BITSTREAM: _ClassVar[ArtifactKind]
ARTIFACT_KIND_UNSPECIFIED: ArtifactKind
ARTIFACT_KIND_MODULE: ArtifactKind
ARTIFACT_KIND_BITSTREAM: ArtifactKind

class OpenSessionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("worker_pid",)
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    worker_pid: int
    def __init__(self, worker_pid: _Optional[int] = ...) -> None: ...

class FindMissingRequest(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class FindMissingResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class PutArtifactRequest(_message.Message):
    __slots__ = ("digest", "size_bytes", "chunk", "is_deflated", "kind")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    IS_DEFLATED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    digest: str
    size_bytes: int
    chunk: bytes
    is_deflated: bool
    kind: ArtifactKind
    def __init__(self, digest: _Optional[str] = ..., size_bytes: _Optional[int] = ..., chunk: _Optional[bytes] = ..., is_deflated: _Optional[bool] = ..., kind: _Optional[_Union[ArtifactKind, str]] = ...) -> None: ...

class PutArtifactResponse(_message.Message):
    __slots__ = ("digests",)
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    digests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, digests: _Optional[_Iterable[str]] = ...) -> None: ...

class MakeUploadTicketRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MakeUploadTicketResponse(_message.Message):
    __slots__ = ("ticket",)
    TICKET_FIELD_NUMBER: _ClassVar[int]
    ticket: bytes
    def __init__(self, ticket: _Optional[bytes] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("artifact_digest", "function", "args", "timeout", "module_kind")
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MODULE_KIND_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Argument]
    timeout: _duration_pb2.Duration
    module_kind: _measurement_pb2.ModuleKind
    def __init__(self, artifact_digest: _Optional[str] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_tensor_pb2.Argument, _Mapping]]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., module_kind: _Optional[_Union[_measurement_pb2.ModuleKind, str]] = ...) -> None: ...

class CallResponse(_message.Message):
    __slots__ = ("outputs", "error", "error_message", "signal")
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    error: _measurement_pb2.ErrorKind
    error_message: str
    signal: int
    def __init__(self, outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ..., error: _Optional[_Union[_measurement_pb2.ErrorKind, str]] = ..., error_message: _Optional[str] = ..., signal: _Optional[int] = ...) -> None: ...

class ProgramRequest(_message.Message):
    __slots__ = ("bitstream_digest", "registers_yaml", "is_partial", "force", "timeout")
    BITSTREAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    REGISTERS_YAML_FIELD_NUMBER: _ClassVar[int]
    IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    bitstream_digest: str
    registers_yaml: str
    is_partial: bool
    force: bool
    timeout: _duration_pb2.Duration
    def __init__(self, bitstream_digest: _Optional[str] = ..., registers_yaml: _Optional[str] = ..., is_partial: _Optional[bool] = ..., force: _Optional[bool] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ProgramResponse(_message.Message):
    __slots__ = ("bitstream_digest", "was_loaded", "took")
    BITSTREAM_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WAS_LOADED_FIELD_NUMBER: _ClassVar[int]
    TOOK_FIELD_NUMBER: _ClassVar[int]
    bitstream_digest: str
    was_loaded: bool
    took: _duration_pb2.Duration
    def __init__(self, bitstream_digest: _Optional[str] = ..., was_loaded: _Optional[bool] = ..., took: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class WatchLogsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchLogsResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
