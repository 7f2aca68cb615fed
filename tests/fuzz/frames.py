"""Hand-written HTTP/2 (RFC 9113, 7541), to be truncated and mixed up: frames that our libraries would never send."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def greeting() -> bytes:
    """Return the first bytes of a connection."""
    return PREFACE + frame(SETTINGS, 0, 0, b"")


def headers(path: str, metadata: Sequence[tuple[str, bytes]], *, stream: int = 1) -> bytes:
    """Return the beginning of a call of gRPC.

    Args:
        path: "/fleet.v1.Service/Method"; "\udcff" stands for the byte 0xff.
        metadata: names that end with "-bin", and their values.
    """
    fields = [
        (":method", b"POST"),
        (":scheme", b"http"),
        (":path", path.encode(errors="surrogateescape")),
        (":authority", b"here"),
    ]
    fields += [("te", b"trailers"), ("content-type", b"application/grpc")]
    fields += [(name, base64.b64encode(value)) for name, value in metadata]
    block = b"".join(b"\x00" + _text(name.encode()) + _text(value) for name, value in fields)
    return frame(HEADERS, _END_HEADERS, stream, block)


def message(content: bytes, *, stream: int = 1, is_last: bool = True) -> bytes:
    """Return a message of gRPC in a frame."""
    return frame(DATA, _END_STREAM if is_last else 0, stream, struct.pack(">BI", 0, len(content)) + content)


def _text(content: bytes) -> bytes:
    return _length(len(content)) + content


def _length(number: int) -> bytes:
    """Return an integer with a prefix of seven bits, the length of a text without Huffman coding."""
    if number < 127:
        return bytes([number])
    number -= 127
    rest = bytearray([127])
    while number >= 128:
        rest.append(number % 128 + 128)
        number //= 128
    return bytes([*rest, number])
