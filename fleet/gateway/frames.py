"""Messages between a stock TVM client and a tracker, as values. Pure.

Integers are little endian. A client sends the tracker's magic number and waits for its echo. After that, each message
is a length and as many bytes of JSON: `[code, arguments...]`. There is one reply per request.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

TRACKER_MAGIC = 0x2F271
SESSION_MAGIC = 0xFF271
INT = struct.Struct("<i")

MOST_FRAME_BYTES = 1024 * 1024
MOST_GREETING_BYTES = 4096
_SUCCESS, _FAIL = 0, -1
_MOST_PRIORITY = 2**31 - 1


class BrokenMessage(Exception):
    """A peer does not speak this protocol. Its connection is closed."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Check that the tracker answers."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the tracker."""


@dataclass(frozen=True, slots=True)
class Describe:
    """Describe the sender."""


@dataclass(frozen=True, slots=True)
class Register:
    """Offer a device."""


@dataclass(frozen=True, slots=True)
class Summarize:
    """List keys, with their numbers of free devices and waiting requests."""


@dataclass(frozen=True, slots=True)
class ListPending:
    """List match keys of this connection that nobody was given."""


@dataclass(frozen=True, slots=True)
class Request:
    """Request a device."""

    key: str
    priority: int


Message: TypeAlias = Ping | Stop | Describe | Register | Summarize | ListPending | Request
_WITHOUT_ARGUMENTS: Mapping[int, Callable[[], Message]] = {
    1: Ping,
    2: Stop,
    3: Register,
    5: Describe,
    6: Summarize,
    7: ListPending,
}
_REQUEST = 4


def frame_length(content: bytes) -> int:
    """Return the length of the message that follows.

    Raises:
        BrokenMessage: no valid length.
    """
    length: int = INT.unpack(content)[0]
    if not 0 < length <= MOST_FRAME_BYTES:
        raise BrokenMessage(f"a message of {length} bytes")
    return length


def parse_message(content: bytes) -> Message:
    """Parse a message of a client.

    Raises:
        BrokenMessage: it is malformed, or its code is unknown.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BrokenMessage("a message that is not JSON") from error
    match found:
        case [int(code), *_] if code in _WITHOUT_ARGUMENTS:
            return _WITHOUT_ARGUMENTS[code]()
        case [int(code), str(key), str(), int(priority), *_] if code == _REQUEST:
            return Request(key=key, priority=max(-_MOST_PRIORITY, min(priority, _MOST_PRIORITY)))
    raise BrokenMessage("an unknown message")


def format_reply(reply: object) -> bytes:
    """Return a reply as it travels: ASCII without escapes of printable characters."""
    content = json.dumps(reply).encode()
    return INT.pack(len(content)) + content


def success() -> bytes:
    """Return the reply of a request without a result."""
    return format_reply(_SUCCESS)


def failure(text: str = "") -> bytes:
    """Return the reply of a refused request; stock clients print the text of a refused device request."""
    return format_reply([_FAIL, text] if text else _FAIL)


def result(content: object) -> bytes:
    """Return the reply of a request with a result."""
    return format_reply([_SUCCESS, content])


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """First message of a session."""

    match_key: str
    timeout_sec: int | None
    """Time limit of the session [s]; None: unlimited."""


def greeting_length(content: bytes) -> int:
    """Return the length of a greeting.

    Raises:
        BrokenMessage: no valid length.
    """
    length: int = INT.unpack(content)[0]
    if not 0 < length <= MOST_GREETING_BYTES:
        raise BrokenMessage(f"a greeting of {length} bytes")
    return length


def parse_greeting(content: bytes) -> Greeting:
    """Parse "client:<match key> -timeout=<seconds>".

    Fractions of a second are rounded up.

    Raises:
        BrokenMessage: it is malformed.
    """
    head, *options = content.decode(errors="replace").split(" ")
    if not head.startswith("client:"):
        raise BrokenMessage("a greeting of no client")
    timeout_sec = None
    for option in options:
        name, _, value = option.partition("=")
        if name == "-timeout":
            timeout_sec = _whole_seconds(value)
    return Greeting(match_key=head.removeprefix("client:"), timeout_sec=timeout_sec)


def greeting_answer(name: str) -> bytes:
    """Return the answer that begins a session."""
    content = f"server:{name}".encode()
    return INT.pack(SESSION_MAGIC) + INT.pack(len(content)) + content


def mismatch_answer() -> bytes:
    """Return the answer to a greeting with an unknown match key."""
    return INT.pack(SESSION_MAGIC + 2)


def _whole_seconds(text: str) -> int | None:
    """Return a number of seconds; None for none."""
    try:
        seconds = float(text)
    except ValueError as error:
        raise BrokenMessage("a time limit that is no number") from error
    if not 0 <= seconds < _MOST_PRIORITY:
        raise BrokenMessage("a time limit out of range")
    return -int(-seconds // 1) or None
