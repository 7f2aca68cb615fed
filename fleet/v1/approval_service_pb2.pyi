import datetime

from fleet.v1 import identity_service_pb2 as _identity_service_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AskToJoinRequest(_message.Message):
    __slots__ = ("certificate_request", "name", "commitment", "number")
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    certificate_request: bytes
    name: str
    commitment: bytes
    number: bytes
    def __init__(self, certificate_request: _Optional[bytes] = ..., name: _Optional[str] = ..., commitment: _Optional[bytes] = ..., number: _Optional[bytes] = ...) -> None: ...

class AskToJoinResponse(_message.Message):
    __slots__ = ("number", "membership")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    number: bytes
    membership: _identity_service_pb2.JoinResponse
    def __init__(self, number: _Optional[bytes] = ..., membership: _Optional[_Union[_identity_service_pb2.JoinResponse, _Mapping]] = ...) -> None: ...

class PendingAgent(_message.Message):
    __slots__ = ("code", "key_id", "name", "host", "asked_at")
    CODE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ASKED_AT_FIELD_NUMBER: _ClassVar[int]
    code: str
    key_id: str
    name: str
    host: str
    asked_at: _timestamp_pb2.Timestamp
    def __init__(self, code: _Optional[str] = ..., key_id: _Optional[str] = ..., name: _Optional[str] = ..., host: _Optional[str] = ..., asked_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ListPendingAgentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPendingAgentsResponse(_message.Message):
    __slots__ = ("agents",)
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    agents: _containers.RepeatedCompositeFieldContainer[PendingAgent]
    def __init__(self, agents: _Optional[_Iterable[_Union[PendingAgent, _Mapping]]] = ...) -> None: ...

class ApproveAgentRequest(_message.Message):
    __slots__ = ("code", "name")
    CODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    code: str
    name: str
    def __init__(self, code: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ApproveAgentResponse(_message.Message):
    __slots__ = ("member",)
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    member: _identity_service_pb2.Member
    def __init__(self, member: _Optional[_Union[_identity_service_pb2.Member, _Mapping]] = ...) -> None: ...

class RefuseAgentRequest(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RefuseAgentResponse(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: PendingAgent
    def __init__(self, agent: _Optional[_Union[PendingAgent, _Mapping]] = ...) -> None: ...
