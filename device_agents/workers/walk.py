"""Walks over the fields of a serialised protobuf message without parsing it, up to a number of fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from device_agents.machine.frames import BrokenFrame

LEAST_FIELD_BYTES = 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Walk:
    """Walk over the fields of a frame and its nested messages, up to a total number of fields."""

    def __init__(self, frame: bytes | bytearray | memoryview, most_fields: int) -> None:
        self.frame = frame
        self._left = most_fields

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number of each field, and the start and end of its content, in a part of the frame.

        Raises:
            BrokenFrame: that part is not a valid message, or has too many fields.
        """
        while start < end:
            self._left -= 1
            if self._left < 0:
                raise BrokenFrame("more fields than an answer has")
            key, start = _varint(self.frame, start, end)
            kind = key & 7
            begin = start
            if kind == _VARINT:
                _, start = _varint(self.frame, start, end)
            elif kind == _BYTES:
                size, begin = _varint(self.frame, start, end)
                start = begin + size
            elif kind in (_FIXED64, _FIXED32):
                start += 8 if kind == _FIXED64 else 4
            else:
                raise BrokenFrame("a field of no known kind")
            if start > end:
                raise BrokenFrame("a field is longer than its message")
            yield key >> 3, begin, start

    def places(self, path: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield start and end of each field at a path of field numbers, including its key and length.

        Raises:
            BrokenFrame: see `fields`.
        """
        yield from self._places(0, len(self.frame), path)

    def size_of(self, path: Sequence[int]) -> int:
        """Return the total size of the fields at a path, without their keys and lengths [bytes].

        Raises:
            BrokenFrame: see `fields`.
        """
        return self._size_of(0, len(self.frame), path)

    def without(self, path: Sequence[int]) -> bytes:
        """Return the frame without the fields at a path.

        Raises:
            BrokenFrame: see `fields`.
        """
        return self._without(0, len(self.frame), path)

    def _places(self, start: int, end: int, path: Sequence[int]) -> Iterator[tuple[int, int]]:
        last = start
        for number, begin, stop in self.fields(start, end):
            if number == path[0]:
                if len(path) == 1:
                    yield last, stop
                else:
                    yield from self._places(begin, stop, path[1:])
            last = stop

    def _size_of(self, start: int, end: int, path: Sequence[int]) -> int:
        found = [(begin, stop) for number, begin, stop in self.fields(start, end) if number == path[0]]
        if len(path) == 1:
            return sum(stop - begin for begin, stop in found)
        return sum(self._size_of(begin, stop, path[1:]) for begin, stop in found)

    def _without(self, start: int, end: int, path: Sequence[int]) -> bytes:
        kept: list[bytes] = []
        last = start
        for number, begin, stop in self.fields(start, end):
            if number != path[0]:
                kept.append(bytes(self.frame[last:stop]))
            elif len(path) > 1:
                inner = self._without(begin, stop, path[1:])
                kept.append(field_of(number, len(inner)) + inner)
            last = stop
        return b"".join(kept)


def field_of(number: int, size_bytes: int) -> bytes:
    """Return the key and length that precede the content of a bytes field."""
    return _encoded(number << 3 | _BYTES) + _encoded(size_bytes)


def _encoded(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _varint(frame: bytes | bytearray | memoryview, start: int, end: int) -> tuple[int, int]:
    """Return a varint and the position after it."""
    value = shift = 0
    while start < end and shift < 70:
        byte = frame[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
        shift += 7
    raise BrokenFrame("a number is cut off")
