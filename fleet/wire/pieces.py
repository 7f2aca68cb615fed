"""Messages in pieces: one serialised message as a stream of messages of at most 1 MiB.

The first piece contains the total size, so that a reader can reserve memory before it accepts more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from fleet.errors import InvalidRequest
from fleet.wire.options import MAX_REQUEST_BYTES

P = TypeVar("P")


class Piece(Protocol):
    """Piece of a larger message."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def piece(self) -> bytes: ...


def cut(parts: Iterable[bytes | bytearray | memoryview], make: Callable[[int, bytes], P]) -> Iterator[P]:
    """Cut a message, given as consecutive parts, into pieces.

    Args:
        make: returns a piece, given the total size (0 except for the first piece) and its bytes.
    """
    views = [memoryview(part) for part in parts]
    size_bytes = sum(map(len, views))
    for piece in _even(views):
        yield make(size_bytes, piece)
        size_bytes = 0


class Joining:
    """Incremental assembly of a message from its pieces."""

    def __init__(self, first: Piece, most_bytes: int) -> None:
        """Start with the first piece, see `take`.

        Raises:
            InvalidRequest: the message is larger than `most_bytes`.
        """
        if first.size_bytes > most_bytes:
            raise InvalidRequest(
                f"a message of {first.size_bytes} bytes in pieces, at most {most_bytes} are taken here; "
                "have large arrays filled on the device instead: pass (shape, dtype) pairs"
            )
        self._size_bytes = first.size_bytes
        self.content = bytearray()
        self.take(first)

    @property
    def is_whole(self) -> bool:
        """True once the last piece was added."""
        return len(self.content) == self._size_bytes

    def take(self, piece: Piece) -> None:
        """Add the next piece.

        Raises:
            InvalidRequest: the piece is empty or too long, or belongs to another message.
        """
        left_bytes = self._size_bytes - len(self.content)
        is_first = not self.content
        if len(piece.piece) > left_bytes or (not piece.piece and left_bytes) or (piece.size_bytes and not is_first):
            raise InvalidRequest(
                f"a piece of {len(piece.piece)} bytes where {left_bytes} are missing; is the client of another release?"
            )
        self.content += piece.piece


async def join(pieces: AsyncIterator[Piece], most_bytes: int) -> bytearray:
    """Join the pieces of one message.

    Raises:
        InvalidRequest: the message is larger than `most_bytes`, or truncated.
    """
    joining: Joining | None = None
    async for piece in pieces:
        if joining is None:
            joining = Joining(piece, most_bytes)
        else:
            joining.take(piece)
        if joining.is_whole:
            return joining.content
    raise InvalidRequest("a message in pieces ended before its last piece")


def _even(views: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the bytes in pieces of equal size; only the last may be shorter. Yields one empty piece for no bytes."""
    gathered = bytearray()
    is_any = False
    for view in views:
        start = 0
        while start < len(view):
            if len(gathered) == MAX_REQUEST_BYTES:
                yield bytes(gathered)
                is_any = True
                gathered.clear()
            end = start + MAX_REQUEST_BYTES - len(gathered)
            gathered += view[start:end]
            start = end
    if gathered or not is_any:
        yield bytes(gathered)
