from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class WatchClientsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchClientsResponse(_message.Message):
    __slots__ = ("secret", "first_bytes")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    FIRST_BYTES_FIELD_NUMBER: _ClassVar[int]
    secret: bytes
    first_bytes: bytes
    def __init__(self, secret: _Optional[bytes] = ..., first_bytes: _Optional[bytes] = ...) -> None: ...
