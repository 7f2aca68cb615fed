import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetTrackerRequest(_message.Message):
    __slots__ = ("proof", "is_other_silent")
    PROOF_FIELD_NUMBER: _ClassVar[int]
    IS_OTHER_SILENT_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    is_other_silent: bool
    def __init__(self, proof: _Optional[bytes] = ..., is_other_silent: _Optional[bool] = ...) -> None: ...

class GetTrackerResponse(_message.Message):
    __slots__ = ("is_standby", "other_address", "proof")
    IS_STANDBY_FIELD_NUMBER: _ClassVar[int]
    OTHER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    is_standby: bool
    other_address: str
    proof: bytes
    def __init__(self, is_standby: _Optional[bool] = ..., other_address: _Optional[str] = ..., proof: _Optional[bytes] = ...) -> None: ...

class FollowRequest(_message.Message):
    __slots__ = ("address", "commits")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    address: str
    commits: int
    def __init__(self, address: _Optional[str] = ..., commits: _Optional[int] = ...) -> None: ...

class FollowResponse(_message.Message):
    __slots__ = ("tracker_time", "snapshot", "is_snapshot_end", "commits", "files")
    TRACKER_TIME_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    IS_SNAPSHOT_END_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    tracker_time: _timestamp_pb2.Timestamp
    snapshot: bytes
    is_snapshot_end: bool
    commits: _containers.RepeatedCompositeFieldContainer[JournalCommit]
    files: _containers.RepeatedCompositeFieldContainer[StateFile]
    def __init__(self, tracker_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., snapshot: _Optional[bytes] = ..., is_snapshot_end: _Optional[bool] = ..., commits: _Optional[_Iterable[_Union[JournalCommit, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[StateFile, _Mapping]]] = ...) -> None: ...

class JournalCommit(_message.Message):
    __slots__ = ("boot", "commits", "sum", "rows", "removed")
    BOOT_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    boot: int
    commits: int
    sum: int
    rows: _containers.RepeatedCompositeFieldContainer[JournalRow]
    removed: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, boot: _Optional[int] = ..., commits: _Optional[int] = ..., sum: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[JournalRow, _Mapping]]] = ..., removed: _Optional[_Iterable[str]] = ...) -> None: ...

class JournalRow(_message.Message):
    __slots__ = ("key", "content", "sum")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    key: str
    content: str
    sum: int
    def __init__(self, key: _Optional[str] = ..., content: _Optional[str] = ..., sum: _Optional[int] = ...) -> None: ...

class StateFile(_message.Message):
    __slots__ = ("name", "content")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    content: bytes
    def __init__(self, name: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PromoteResponse(_message.Message):
    __slots__ = ("term",)
    TERM_FIELD_NUMBER: _ClassVar[int]
    term: int
    def __init__(self, term: _Optional[int] = ...) -> None: ...
