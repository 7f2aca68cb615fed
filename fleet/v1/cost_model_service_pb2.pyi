import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchSnapshotsRequest(_message.Message):
    __slots__ = ("feature_version", "known_digest")
    FEATURE_VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    feature_version: str
    known_digest: str
    def __init__(self, feature_version: _Optional[str] = ..., known_digest: _Optional[str] = ...) -> None: ...

class WatchSnapshotsResponse(_message.Message):
    __slots__ = ("snapshot",)
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    snapshot: ModelSnapshot
    def __init__(self, snapshot: _Optional[_Union[ModelSnapshot, _Mapping]] = ...) -> None: ...

class ModelSnapshot(_message.Message):
    __slots__ = ("digest", "content", "feature_version", "target_kinds", "record_count", "made_at")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    FEATURE_VERSION_FIELD_NUMBER: _ClassVar[int]
    TARGET_KINDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_FIELD_NUMBER: _ClassVar[int]
    digest: str
    content: bytes
    feature_version: str
    target_kinds: _containers.RepeatedScalarFieldContainer[str]
    record_count: int
    made_at: _timestamp_pb2.Timestamp
    def __init__(self, digest: _Optional[str] = ..., content: _Optional[bytes] = ..., feature_version: _Optional[str] = ..., target_kinds: _Optional[_Iterable[str]] = ..., record_count: _Optional[int] = ..., made_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
