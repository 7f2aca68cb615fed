"""Progress of slow commands: a spinner on a terminal, lines on stderr elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.text import Text

from fleet.base.text import printable
from fleet.cli.terminal import CleanConsole

LONGEST_SILENCE_SEC = 5.0
_PATIENCE_SEC = 2.0
"""When piped, commands that end sooner print nothing, unless they report steps."""


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show progress while the block runs, and yield a function that reports the next step.

    If stderr is not a terminal, each step prints a line, and a heartbeat line follows every five silent seconds. The
    text itself is printed after two seconds without a step.
    """
    console = CleanConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if console.is_terminal:
        with console.status(Text(text)) as status:
            yield lambda said: status.update(Text(said))
        return
    lines = _Lines(text)
    with lines.ticking():
        yield lines.say


class _Lines:
    """Print the steps of an activity, and a heartbeat during long silences."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_printed = False
        self._step_began_at = self._printed_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def say(self, text: str) -> None:
        """Print the next step."""
        with self._lock:
            self._text, self._step_began_at = text, time.monotonic()
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
        while not self._ended.wait(0.1):
            with self._lock:
                now = time.monotonic()
                if not self._is_printed and now - self._printed_at >= _PATIENCE_SEC:
                    self._print(self._text)
                elif now - self._printed_at >= LONGEST_SILENCE_SEC:
                    self._print(f"{self._text} ({now - self._step_began_at:.0f} s)")

    def _print(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed pipe does not end the command
            print(printable(text), file=sys.stderr, flush=True)
        self._is_printed = True
        self._printed_at = time.monotonic()
