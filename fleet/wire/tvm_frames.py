"""Messages between TVM's RPC tracker and its peers, as values. Pure.

Integers are little endian. A peer sends the tracker's magic number and waits for its echo. After that, each message is
a length and as many bytes of JSON: `[code, arguments...]`. There is one reply per message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

TRACKER_MAGIC = 0x2F271
INT = struct.Struct("<i")

MOST_FRAME_BYTES = 1024 * 1024
_SUCCESS, _FAIL = 0, -1
_MOST_PRIORITY = 2**31 - 1


class BrokenMessage(Exception):
    """A peer does not speak this protocol. Its connection is closed."""


class Code(IntEnum):
    """Kinds of messages to a tracker, by TVM's names."""

    PING = 1
    STOP = 2
    PUT = 3
    """A server offers a session."""

    REQUEST = 4
    """A client requests a device."""

    UPDATE_INFO = 5
    """A peer describes itself."""

    SUMMARY = 6
    """Lists keys, with their numbers of free devices and waiting requests."""

    GET_PENDING_MATCHKEYS = 7
    """Lists the match keys of this connection that no client has been given."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a tracker."""

    code: Code
    arguments: Sequence[object]
    """Unchecked; see `parse_request`."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a message with `Code.REQUEST`."""

    key: str
    priority: int


def frame_length(content: bytes, most_bytes: int = MOST_FRAME_BYTES) -> int:
    """Return the length of the message that follows.

    Raises:
        BrokenMessage: no valid length.
    """
    length: int = INT.unpack(content)[0]
    if not 0 < length <= most_bytes:
        raise BrokenMessage(f"a message of {length} bytes")
    return length


def parse_message(content: bytes) -> Message:
    """Parse a message.

    Raises:
        BrokenMessage: it is malformed, or its code is unknown.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BrokenMessage("a message that is not JSON") from error
    match found:
        case [int(code), *arguments] if code in list(Code):
            return Message(Code(code), arguments)
    raise BrokenMessage("an unknown message")


def parse_request(arguments: Sequence[object]) -> Request:
    """Parse the arguments of a request.

    Raises:
        BrokenMessage: they are malformed.
    """
    match arguments:
        case [str(key), str(), int(priority), *_]:
            return Request(key=key, priority=max(-_MOST_PRIORITY, min(priority, _MOST_PRIORITY)))
    raise BrokenMessage("a malformed request")


def format_frame(content: object) -> bytes:
    """Return a message or reply as it travels: ASCII without escapes of printable characters."""
    text = json.dumps(content).encode()
    return INT.pack(len(text)) + text


def success() -> bytes:
    """Return the reply to a message without a result."""
    return format_frame(_SUCCESS)


def failure(text: str = "") -> bytes:
    """Return the reply to a refused message; stock clients print the text of a refused device request."""
    return format_frame([_FAIL, text] if text else _FAIL)


def result(content: object) -> bytes:
    """Return the reply to a message with a result."""
    return format_frame([_SUCCESS, content])
