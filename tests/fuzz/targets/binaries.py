"""Uploads of holders: bitstreams, libraries, compressed chunks."""

from __future__ import annotations

import contextlib

from device_agents.drivers.zynq.bitstream import check_chip, parse_bitstream
from fleet.artifacts.artifact import check_architecture
from fleet.artifacts.chunks import CHUNK_BYTES, DamagedChunk, Deflater, Inflater
from fleet.artifacts.elf import arm_float_abi, undefined_symbols
from fleet.errors import ArtifactRefused, InvalidRequest
from tests import bitstreams
from tests.fuzz.target import Target, no_loop


def _bitstream(content: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        check_chip(parse_bitstream(content), "7z020clg400", device_name="here")


def _library(content: bytes) -> None:
    with contextlib.suppress(ArtifactRefused):
        check_architecture(content, "armv7l", device_name="here")
    arm_float_abi(content)
    with contextlib.suppress(ValueError):
        undefined_symbols(content)


def _chunk(content: bytes) -> None:
    inflater = Inflater()
    with contextlib.suppress(DamagedChunk):
        for chunk in content.split(b"|||"):
            assert len(inflater.inflate(chunk, is_deflated=True)) <= CHUNK_BYTES


def _chunks() -> list[bytes]:
    deflater = Deflater()
    first = deflater.deflate(b"a kernel and another kernel " * 50) or b""
    return [first, first + b"|||" + (deflater.deflate(b"a kernel and another one " * 60) or b"")]


def _libraries() -> list[bytes]:
    """Return headers with tables of sections behind them: 64 bits, and ARM with its attributes."""
    import struct

    wide = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, 64, 0, 64, 0, 0, 64, 3, 0)
    names = b"\0malloc\0free\0"
    table = bytes(24) + struct.pack("<IBBHQQ", 1, 18, 0, 0, 0, 0) + struct.pack("<IBBHQQ", 8, 18, 0, 0, 0, 0)
    start = 64 + 3 * 64
    sections = [(0, 0, 0, 0), (11, start + len(names), len(table), 2), (3, start, len(names), 0)]
    wide += b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, offset, size, link, 0, 1, 24) for kind, offset, size, link in sections
    )
    attributes = b"A" + struct.pack("<I", 20) + b"aeabi\0" + b"\x01" + struct.pack("<I", 9) + b"\x06\x0a\x1c\x01"
    arm = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack("<HHIIIIIHHHHHH", 3, 40, 1, 0, 0, 52, 0, 52, 0, 0, 40, 2, 0)
    arm += bytes(40) + struct.pack("<IIIIIIIIII", 0, 0x70000003, 0, 0, 132, len(attributes), 0, 0, 1, 0) + attributes
    return [wide + names + table, arm]


BINARIES = [
    Target(
        name="bitstream",
        run=no_loop(_bitstream),
        seeds=lambda: [
            bitstreams.make_bit(b"payload!"),
            bitstreams.make_words(b"payload!"),
            bitstreams.swap_words(bitstreams.make_words(b"payload!")),
        ],
        words=(bytes.fromhex("aa995566"), bytes.fromhex("665599aa"), bytes.fromhex("30018001"), b"\x20\0\0\0"),
        quick_inputs=300,
    ),
    Target(name="library_header", run=no_loop(_library), seeds=_libraries, words=(b"\x7fELF",), quick_inputs=300),
    Target(name="upload_chunk", run=no_loop(_chunk), seeds=_chunks, words=(b"|||",), quick_inputs=300),
]
