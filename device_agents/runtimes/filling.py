"""Random numbers for arguments: floats from 1 to 10 as in TVM's random_fill_for_measure, and integers of the same
range.

Not by that function where it can be helped: it fills on TVM's thread pool, and the threads then spin for some 10 ms, a
core lost to the candidates and to the agent with every trial. Here a tile of numbers is made once per type and copied.
So every candidate gets the same numbers, and each of its arguments others than its neighbours.
"""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Sequence

_FLOATS = {"float16": "e", "float32": "f", "float64": "d"}
_SIGNED = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}
_CODES = {**_FLOATS, **_SIGNED, **{f"u{name}": code.upper() for name, code in _SIGNED.items()}}
"""DLPack name to struct's code."""

_LOWEST, _HIGHEST = 1.0, 10.0
_TILE_ELEMENTS = 16381
"""Prime, so that no row of a usual length repeats the one before."""

_STEP_ELEMENTS = 1009
"""From the first number of an argument to that of the next."""

MAX_BYTES = 16 * 1024 * 1024
"""Larger ones are left to TVM: a second copy would count against the candidate's memory."""


def random_content(dtype: str, size_bytes: int, index: int) -> bytes | None:
    """Return the content of argument `index`, of this DLPack type and size; None where TVM has to fill it."""
    tile = make_tile(dtype.partition("x")[0]) if size_bytes <= MAX_BYTES else b""
    if not tile:
        return None
    width = len(tile) // _TILE_ELEMENTS
    start = index * _STEP_ELEMENTS % _TILE_ELEMENTS * width
    content = tile[start : start + size_bytes]
    if len(content) == size_bytes:
        return content
    return (content + tile * (size_bytes // len(tile) + 1))[:size_bytes]


@functools.cache
def make_tile(dtype: str) -> bytes:
    """Return the same numbers of a type on each call; empty for an unsupported type."""
    numbers = random.Random(0)
    values = [numbers.uniform(_LOWEST, _HIGHEST) for _ in range(_TILE_ELEMENTS)]
    if dtype in _FLOATS:
        return _pack(_CODES[dtype], values)
    if dtype in _CODES:
        return _pack(_CODES[dtype], list(map(int, values)))
    if dtype == "bfloat16":
        # The upper half of a float32.
        return _pack("H", [bits >> 16 for (bits,) in struct.iter_unpack("=I", _pack("f", values))])
    if dtype == "bool":
        return _pack("B", [int(value) % 2 for value in values])
    return b""


def _pack(code: str, values: Sequence[float]) -> bytes:
    return struct.pack(f"={len(values)}{code}", *values)
