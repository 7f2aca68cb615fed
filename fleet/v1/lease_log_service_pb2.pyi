from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WatchLeaseLogRequest(_message.Message):
    __slots__ = ("lease_name", "follow")
    LEASE_NAME_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    lease_name: str
    follow: bool
    def __init__(self, lease_name: _Optional[str] = ..., follow: _Optional[bool] = ...) -> None: ...

class WatchLeaseLogResponse(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...
