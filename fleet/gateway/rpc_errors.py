"""Errors as messages of a TVM RPC session. Pure."""

from __future__ import annotations

import struct

_MOST_BYTES = 4000
_HEAD = struct.Struct("<iiiQ")
_EXCEPTION, _ARGUMENTS, _RAW_STRING = 5, 1, 8
"""Code of the message, number of its arguments, and type of the only one, as TVM encodes them since 0.21."""


def exception_message(text: str) -> bytes:
    """Return the message by which a server fails a request of its client.

    TVM's own `rpc.ReturnException` makes the same bytes, but hangs with texts of some kilobytes (seen with 0.27).
    """
    content = text.encode()[:_MOST_BYTES].decode(errors="ignore").encode()
    message = _HEAD.pack(_EXCEPTION, _ARGUMENTS, _RAW_STRING, len(content)) + content
    return struct.pack("<Q", len(message)) + message


def timeout_text(seconds: int) -> str:
    """Return the text from which a stock client makes an RPCSessionTimeoutError."""
    return f"RPCSessionTimeoutError: this session has expired after {seconds} s; increase session_timeout"
