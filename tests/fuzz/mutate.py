"""Mutates inputs: reproducibly for a seed, on any machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_TELLING = (
    *(b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00" * 8, b"\xff" * 9 + b"\x01"),
    *(b"0", b"-1", b"1e999", b"NaN", b"-0.0", b"9" * 5000, b"2001-99-99", b"1_0", "\u0663".encode(), "\u017f".encode()),
    *(b"\n", b'"', b"'", b"\\", b"[" * 3000, b'{"a":' * 2000, b"%s", b"../../", b"\xed\xa0\x80", "\u202e".encode()),
)
"""Values that programs often forget to handle."""

_LARGE_SHARE = 0.01
_MOST_CHANGES = 6


def mutated(
    rng: random.Random,
    starts: Sequence[bytes],
    *,
    words: Sequence[bytes] = (),
    most_bytes: int = 4096,
    large_bytes: int = 1024 * 1024,
) -> bytes:
    """Return an input made of one or two others."""
    content = bytearray(rng.choice(starts) if starts else b"")
    changes: list[Callable[[bytearray, random.Random], None]] = [_flip, _set, _cut, _copy, _drop, _number]
    for _ in range(rng.randint(1, _MOST_CHANGES)):
        choice = rng.random()
        if choice < 0.15:
            _insert(content, rng, rng.choice(_TELLING))
        elif choice < 0.3 and words:
            _insert(content, rng, rng.choice(words))
        elif choice < 0.35 and starts:
            _splice(content, rng, rng.choice(starts))
        elif content:
            rng.choice(changes)(content, rng)
    if content and rng.random() < _LARGE_SHARE:
        return _large(bytes(content), rng, large_bytes)
    return bytes(content[: max(most_bytes, len(starts[0]) if starts else 0)])


def _place(content: bytearray, rng: random.Random) -> slice:
    start = rng.randrange(len(content))
    return slice(start, start + min(rng.choice((1, 2, 4, 8, 32, 200)), len(content) - start))


def _flip(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _set(content: bytearray, rng: random.Random) -> None:
    place = _place(content, rng)
    content[place] = rng.randbytes(place.stop - place.start)


def _number(content: bytearray, rng: random.Random) -> None:
    """Add a little to a byte: lengths and counts are off by one."""
    at = rng.randrange(len(content))
    content[at] = (content[at] + rng.choice((-1, 1, -16, 16))) % 256


def _cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


def _drop(content: bytearray, rng: random.Random) -> None:
    del content[_place(content, rng)]


def _copy(content: bytearray, rng: random.Random) -> None:
    _insert(content, rng, bytes(content[_place(content, rng)]) * rng.choice((1, 1, 2, 50)))


def _insert(content: bytearray, rng: random.Random, piece: bytes) -> None:
    at = rng.randint(0, len(content))
    if rng.random() < 0.3:
        del content[at : at + len(piece)]
    content[at:at] = piece


def _splice(content: bytearray, rng: random.Random, other: bytes) -> None:
    at = rng.randint(0, len(other))
    content[rng.randint(0, len(content)) :] = other[at:]


def _large(content: bytes, rng: random.Random, large_bytes: int) -> bytes:
    """Repeat a part very often: a byte may expand to a hundred bytes when it is parsed."""
    place = _place(bytearray(content), rng)
    piece = content[place]
    return content[: place.start] + piece * (large_bytes // len(piece)) + content[place.start :]
