"""First messages of a session between a stock TVM client and a server, as values. Pure.

Integers are little endian. The client sends a magic number, the length of its name, and its name: "client:<match key>"
with options after a space.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.wire.tvm_frames import INT, BrokenMessage

SESSION_MAGIC = 0xFF271

MOST_GREETING_BYTES = 4096
_MOST_TIMEOUT_SEC = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """First message of a session."""

    match_key: str
    timeout_sec: int | None
    """Time limit of the session [s]; None: unlimited."""


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
    if not 0 <= seconds < _MOST_TIMEOUT_SEC:
        raise BrokenMessage("a time limit out of range")
    return -int(-seconds // 1) or None
