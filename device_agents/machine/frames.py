"""Messages between processes of one machine: a u32 little-endian length, followed by that many bytes."""

from __future__ import annotations

import struct

HEADER = struct.Struct("<I")
MAX_FRAME_BYTES = 257 * 1024 * 1024
"""Limit for the largest chunked request and a path. A longer frame means that a candidate wrote to the socket."""


class BrokenFrame(Exception):
    """The input is not a frame."""


def parse_header(header: bytes | bytearray) -> int:
    """Return the length that a header announces.

    Raises:
        BrokenFrame: it is too large to be true.
    """
    (size,) = HEADER.unpack(header)
    if size > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a frame of {size} bytes was announced")
    return int(size)


def format_frame(content: bytes) -> bytes:
    """Return a frame."""
    return HEADER.pack(len(content)) + content
