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

class ProofVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROOF_VERDICT_UNSPECIFIED: _ClassVar[ProofVerdict]
    PROOF_VERDICT_PROVEN: _ClassVar[ProofVerdict]
    PROOF_VERDICT_REFUTED: _ClassVar[ProofVerdict]
    PROOF_VERDICT_IMPOSSIBLE: _ClassVar[ProofVerdict]
    PROOF_VERDICT_UNDECIDED: _ClassVar[ProofVerdict]
ARTIFACT_KIND_UNSPECIFIED: ArtifactKind
ARTIFACT_KIND_MODULE: ArtifactKind
ARTIFACT_KIND_BITSTREAM: ArtifactKind
PROOF_VERDICT_UNSPECIFIED: ProofVerdict
PROOF_VERDICT_PROVEN: ProofVerdict
PROOF_VERDICT_REFUTED: ProofVerdict
PROOF_VERDICT_IMPOSSIBLE: ProofVerdict
PROOF_VERDICT_UNDECIDED: ProofVerdict

class OpenSessionRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("worker_pid", "takes_pieces")
    WORKER_PID_FIELD_NUMBER: _ClassVar[int]
    TAKES_PIECES_FIELD_NUMBER: _ClassVar[int]
    worker_pid: int
    takes_pieces: bool
    def __init__(self, worker_pid: _Optional[int] = ..., takes_pieces: _Optional[bool] = ...) -> None: ...

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
    __slots__ = ("artifact_digest", "function", "args", "timeout", "module_kind", "is_apart", "allow_poison")
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MODULE_KIND_FIELD_NUMBER: _ClassVar[int]
    IS_APART_FIELD_NUMBER: _ClassVar[int]
    ALLOW_POISON_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    function: str
    args: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Argument]
    timeout: _duration_pb2.Duration
    module_kind: _measurement_pb2.ModuleKind
    is_apart: bool
    allow_poison: bool
    def __init__(self, artifact_digest: _Optional[str] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[_tensor_pb2.Argument, _Mapping]]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., module_kind: _Optional[_Union[_measurement_pb2.ModuleKind, str]] = ..., is_apart: _Optional[bool] = ..., allow_poison: _Optional[bool] = ...) -> None: ...

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

class CallInPiecesRequest(_message.Message):
    __slots__ = ("size_bytes", "piece")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    piece: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class CallInPiecesResponse(_message.Message):
    __slots__ = ("size_bytes", "piece")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    piece: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class ProveInPiecesRequest(_message.Message):
    __slots__ = ("size_bytes", "piece")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    piece: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class ProveInPiecesResponse(_message.Message):
    __slots__ = ("size_bytes", "piece")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    piece: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., piece: _Optional[bytes] = ...) -> None: ...

class ProofArgument(_message.Message):
    __slots__ = ("spec", "bank", "is_fixed")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    BANK_FIELD_NUMBER: _ClassVar[int]
    IS_FIXED_FIELD_NUMBER: _ClassVar[int]
    spec: _tensor_pb2.TensorSpec
    bank: bytes
    is_fixed: bool
    def __init__(self, spec: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., bank: _Optional[bytes] = ..., is_fixed: _Optional[bool] = ...) -> None: ...

class ProveRequest(_message.Message):
    __slots__ = ("artifact_digest", "function", "args", "claimed_sec", "timeout", "answers", "allow_poison")
    ARTIFACT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    CLAIMED_SEC_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_POISON_FIELD_NUMBER: _ClassVar[int]
    artifact_digest: str
    function: str
    args: _containers.RepeatedCompositeFieldContainer[ProofArgument]
    claimed_sec: float
    timeout: _duration_pb2.Duration
    answers: int
    allow_poison: bool
    def __init__(self, artifact_digest: _Optional[str] = ..., function: _Optional[str] = ..., args: _Optional[_Iterable[_Union[ProofArgument, _Mapping]]] = ..., claimed_sec: _Optional[float] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., answers: _Optional[int] = ..., allow_poison: _Optional[bool] = ...) -> None: ...

class ProofAnswer(_message.Message):
    __slots__ = ("seed", "call", "outputs")
    SEED_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    seed: bytes
    call: int
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.Tensor]
    def __init__(self, seed: _Optional[bytes] = ..., call: _Optional[int] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.Tensor, _Mapping]]] = ...) -> None: ...

class ProveResponse(_message.Message):
    __slots__ = ("verdict", "measured_sec", "least_sec", "calls", "answers", "message", "error", "spread_sec")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    MEASURED_SEC_FIELD_NUMBER: _ClassVar[int]
    LEAST_SEC_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SPREAD_SEC_FIELD_NUMBER: _ClassVar[int]
    verdict: ProofVerdict
    measured_sec: float
    least_sec: float
    calls: int
    answers: _containers.RepeatedCompositeFieldContainer[ProofAnswer]
    message: str
    error: _measurement_pb2.ErrorKind
    spread_sec: float
    def __init__(self, verdict: _Optional[_Union[ProofVerdict, str]] = ..., measured_sec: _Optional[float] = ..., least_sec: _Optional[float] = ..., calls: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[ProofAnswer, _Mapping]]] = ..., message: _Optional[str] = ..., error: _Optional[_Union[_measurement_pb2.ErrorKind, str]] = ..., spread_sec: _Optional[float] = ...) -> None: ...

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

class TunnelRequest(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class TunnelResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...
