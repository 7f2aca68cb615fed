"""Streams that a server serves, by caller: an rpc is authorised once, and a stream may last for months.

A former member loses its streams at once, and a stream does not outlive the certificate that it was opened with: a
client that renews in time opens another with the newer one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from fleet.errors import FleetError, TrackerUnavailable

logger = logging.getLogger(__name__)

_END_SEC = 5.0
"""Time limit for a cancelled stream to end."""


class OpenStream:
    """One stream, with the task that serves it."""

    def __init__(self, key_id: str, ends_at_sec: float) -> None:
        self.key_id = key_id
        self.ends_at_sec = ends_at_sec
        """End of its caller's certificate [s since 1970]."""
        self.error: FleetError | None = None
        """Error that it was ended with."""
        self.left = asyncio.Event()
        self._task = asyncio.current_task()

    def end(self, error: FleetError) -> None:
        """End the stream with an error. Idempotent."""
        if self.error is None and self._task is not None:
            self.error = error
            self._task.cancel()

    def is_cancelled_by_me(self) -> bool:
        """Tell whether the cancellation that its task has just received came from `end`, and undo it then."""
        if self.error is None or self._task is None:
            return False
        return self._task.uncancel() == 0


class OpenStreams:
    """All open streams of one server."""

    def __init__(self) -> None:
        self._by_key: dict[str, set[OpenStream]] = {}

    @contextlib.contextmanager
    def entered(self, key_id: str, ends_at_sec: float) -> Iterator[OpenStream]:
        """Register a stream for the duration of the block, which the stream's own task enters."""
        stream = OpenStream(key_id, ends_at_sec)
        self._by_key.setdefault(key_id, set()).add(stream)
        try:
            yield stream
        finally:
            stream.left.set()
            others = self._by_key[key_id]
            others.discard(stream)
            if not others:
                del self._by_key[key_id]

    async def end(self, key_id: str, error: FleetError) -> None:
        """End the streams of a key; return when they have ended."""
        streams = list(self._by_key.get(key_id, ()))
        for stream in streams:
            stream.end(error)
        try:
            async with asyncio.timeout(_END_SEC):
                for stream in streams:
                    await stream.left.wait()
        except TimeoutError:
            logger.warning("a stream does not end", extra={"key": key_id})

    def end_expired(self, now_sec: float) -> None:
        """End the streams of callers with expired certificates [s since 1970]."""
        error = TrackerUnavailable("the certificate that this stream was opened with has ended; open another stream")
        for stream in [each for streams in self._by_key.values() for each in streams if each.ends_at_sec <= now_sec]:
            stream.end(error)
