"""Bitstreams that configure nothing: real containers and configuration packets around any payload, for tests.

Files as of Vivado, only smaller: a .bit header with the fields a to e, dummy words, the bus width pattern, the sync
word, packets that write IDCODE and frame data, and the command that ends the configuration. Packet formats: AMD UG470
(7 series) and UG570 (UltraScale), chapter "Configuration Details".
"""

from __future__ import annotations

import struct

XC7Z020 = 0x03727093
XC7Z010 = 0x03722093
XCZU3 = 0x04A42093

SYNC = 0xAA995566
_DUMMY = 0xFFFFFFFF
_NOOP = 0x20000000
_WRITE_IDCODE = 0x30018001
_WRITE_COMMAND = 0x30008001
_WRITE_FRAMES = 0x30004000
_DESYNC = 0xD


def make_words(payload: bytes = b"frames", *, idcode: int = XC7Z020) -> bytes:
    """Return a configuration in the data sheet's byte order: each word with its highest byte first."""
    padded = payload + bytes(-len(payload) % 4)
    words = [_DUMMY] * 8 + [0x000000BB, 0x11220044, _DUMMY, _DUMMY, SYNC, _NOOP, _WRITE_IDCODE, idcode, _NOOP]
    frames = struct.pack(">2I", _WRITE_FRAMES, 2 << 29 | 2 << 27 | len(padded) // 4) + padded
    closing = struct.pack(">4I", _NOOP, _WRITE_COMMAND, _DESYNC, _NOOP)
    return struct.pack(f">{len(words)}I", *words) + frames + closing


def make_bit(
    payload: bytes = b"frames", *, design: str = "design", part: str = "7z020clg400", idcode: int = XC7Z020
) -> bytes:
    """Return a .bit file."""
    words = make_words(payload, idcode=idcode)
    head = struct.pack(">H", 9) + bytes.fromhex("0ff00ff00ff00ff000") + struct.pack(">H", 1)
    texts = {"a": f"{design};UserID=0XFFFFFFFF;Version=2023.2", "b": part, "c": "2026/01/31", "d": "12:00:00"}
    for key, text in texts.items():
        content = text.encode() + b"\0"
        head += key.encode() + struct.pack(">H", len(content)) + content
    return head + b"e" + struct.pack(">I", len(words)) + words


def swap_words(words: bytes) -> bytes:
    """Return the FPGA manager's format: the bytes of each word in reverse order."""
    count = len(words) // 4
    return struct.pack(f"<{count}I", *struct.unpack(f">{count}I", words))
