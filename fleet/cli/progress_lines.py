"""Progress for pipes and logs: a line per step, and heartbeats during silences."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

LONGEST_SILENCE_SEC = 5.0
_TICK_SEC = 0.5
"""Long enough not to disturb measurements on the same machine."""


class ProgressLines:
    """Print lines, and a heartbeat with the current state after five silent seconds. Thread-safe."""

    def __init__(
        self, write: Callable[[str], None], state: Callable[[], str], *, first_silence_sec: float | None = None
    ) -> None:
        """Args:
        write: prints a line.
        state: returns the heartbeat line; empty to skip it.
        first_silence_sec: silence before the first heartbeat [s]; None for five seconds.
        """
        self._write = write
        self._state = state
        self._silence_sec = LONGEST_SILENCE_SEC if first_silence_sec is None else first_silence_sec
        self._printed_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def print(self, text: str) -> None:
        """Print a line."""
        with self._lock:
            self._print(text)

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Print heartbeats while the block runs."""
        thread = threading.Thread(target=self._tick, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_SEC):
            with self._lock:
                is_due = time.monotonic() - self._printed_at >= self._silence_sec
                if is_due and (text := self._state()):
                    self._print(text)

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed pipe does not end the command
            self._write(text)
        self._printed_at, self._silence_sec = time.monotonic(), LONGEST_SILENCE_SEC
