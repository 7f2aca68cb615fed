"""Messages in chunks: one serialised message as a stream of messages of at most 1 MiB.

The first chunk contains the total size, so that a reader can reserve memory before it accepts more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from fleet.errors import InvalidRequest
from fleet.wire.options import MAX_REQUEST_BYTES

P = TypeVar("P")


class Chunk(Protocol):
    """Chunk of a larger message."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def piece(self) -> bytes: ...


def cut(parts: Iterable[bytes | bytearray | memoryview], make: Callable[[int, bytes], P]) -> Iterator[P]:
    """Cut a message, given as consecutive parts, into chunks.

    Args:
        make: returns a chunk, given the total size (0 except for the first chunk) and its bytes.
    """
    views = [memoryview(part) for part in parts]
    size_bytes = sum(map(len, views))
    for chunk in _even(views):
        yield make(size_bytes, chunk)
        size_bytes = 0


class Joining:
    """Incremental assembly of a message from its chunks."""

    def __init__(self, first: Chunk, most_bytes: int) -> None:
        """Start with the first chunk, see `take`.

        Raises:
            InvalidRequest: the message is larger than `most_bytes`.
        """
        if first.size_bytes > most_bytes:
            raise InvalidRequest(
                f"a message of {first.size_bytes} bytes in chunks, at most {most_bytes} are taken here; "
                "have large arrays filled on the device instead: pass (shape, dtype) pairs"
            )
        self._size_bytes = first.size_bytes
        self.content = bytearray()
        self.take(first)

    @property
    def is_whole(self) -> bool:
        """True once the last chunk was added."""
        return len(self.content) == self._size_bytes

    def take(self, chunk: Chunk) -> None:
        """Add the next chunk.

        Raises:
            InvalidRequest: the chunk is empty or too long, or belongs to another message.
        """
        left_bytes = self._size_bytes - len(self.content)
        is_first = not self.content
        if len(chunk.piece) > left_bytes or (not chunk.piece and left_bytes) or (chunk.size_bytes and not is_first):
            raise InvalidRequest(
                f"a chunk of {len(chunk.piece)} bytes where {left_bytes} are missing; is the client of another release?"
            )
        self.content += chunk.piece


async def join(chunks: AsyncIterator[Chunk], most_bytes: int) -> bytearray:
    """Join the chunks of one message.

    Raises:
        InvalidRequest: the message is larger than `most_bytes`, or truncated.
    """
    joining: Joining | None = None
    async for chunk in chunks:
        if joining is None:
            joining = Joining(chunk, most_bytes)
        else:
            joining.take(chunk)
        if joining.is_whole:
            return joining.content
    raise InvalidRequest("a message in chunks ended before its last chunk")


def _even(views: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the bytes in chunks of equal size; only the last may be shorter. Yields one empty chunk for no bytes."""
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
