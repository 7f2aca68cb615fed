"""The server name in a TLS ClientHello (RFC 8446, RFC 6066). Pure.

Nothing else of a connection is read.
"""

from __future__ import annotations

from collections.abc import Iterator

MOST_HELLO_BYTES = 16 * 1024
"""gRPC sends 300 bytes to 2 KiB."""

_HEADER_BYTES, _MESSAGE_HEADER_BYTES = 5, 4
_HANDSHAKE, _TLS_MAJOR = 0x16, 3
_MOST_RECORD_BYTES = 2**14
_CLIENT_HELLO = 1
_SERVER_NAME, _HOST_NAME = 0, 0
_MOST_NAME_BYTES = 255
_VERSION_AND_RANDOM_BYTES = 34


class NoClientHello(Exception):
    """These bytes do not start a TLS connection to a named server."""


def server_name_in(content: bytes) -> str | None:
    """Return the server name in a connection's first bytes, or None if the ClientHello is incomplete.

    Raises:
        NoClientHello: it is malformed, too large, or names no server.
    """
    handshake = b""
    for part in _records(content):
        handshake += part
        if (hello := _hello_in(handshake)) is not None:
            return _name_in(_Reader(hello))
    if len(content) >= MOST_HELLO_BYTES:
        raise NoClientHello("a ClientHello in too many records")
    return None


def _hello_in(handshake: bytes) -> bytes | None:
    """Return a handshake's complete ClientHello, or None if it is incomplete.

    Raises:
        NoClientHello: it is another message, or too large.
    """
    if handshake[:1] not in (b"", bytes([_CLIENT_HELLO])):
        raise NoClientHello("a handshake without a ClientHello")
    end = _MESSAGE_HEADER_BYTES + int.from_bytes(handshake[1:_MESSAGE_HEADER_BYTES], "big")
    if end > MOST_HELLO_BYTES:
        raise NoClientHello(f"a ClientHello of {end} bytes")
    is_complete = len(handshake) >= max(end, _MESSAGE_HEADER_BYTES)
    return handshake[_MESSAGE_HEADER_BYTES:end] if is_complete else None


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the contents of the handshake records, the last of which may be incomplete.

    Raises:
        NoClientHello: another kind of record.
    """
    while content:
        if content[0] != _HANDSHAKE or content[1:2] not in (b"", bytes([_TLS_MAJOR])):
            raise NoClientHello("no TLS handshake")
        length = int.from_bytes(content[3:_HEADER_BYTES], "big")
        if len(content) >= _HEADER_BYTES and not 0 < length <= _MOST_RECORD_BYTES:
            raise NoClientHello(f"a record of {length} bytes")
        yield content[_HEADER_BYTES : _HEADER_BYTES + length]
        content = content[_HEADER_BYTES + length :]


def _name_in(hello: _Reader) -> str:
    hello.take(_VERSION_AND_RANDOM_BYTES)
    for size in (1, 2, 1):  # the session's id, cipher suites, compression methods
        hello.take_field(size)
    extensions = _Reader(hello.take_field(2))
    while not extensions.is_empty:
        kind = extensions.take_number(2)
        extension = extensions.take_field(2)
        if kind == _SERVER_NAME:
            return _first_name(_Reader(_Reader(extension).take_field(2)))
    raise NoClientHello("it names no server")


def _first_name(names: _Reader) -> str:
    """Return the only name of a list; RFC 6066 allows no second one of this kind."""
    kind, name = names.take_number(1), names.take_field(2)
    if kind != _HOST_NAME or len(name) > _MOST_NAME_BYTES or not name.isascii():
        raise NoClientHello("it names no host")
    return name.decode("ascii")


class _Reader:
    """Reads fields with a length of their own.

    Raises:
        NoClientHello: a field is longer than the rest.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._content)

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._content):
            raise NoClientHello("it is cut off")
        self._at += size
        return self._content[self._at - size : self._at]

    def take_number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def take_field(self, size: int) -> bytes:
        """Return a field that follows its length, a number of `size` bytes."""
        return self.take(self.take_number(size))
