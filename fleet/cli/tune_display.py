"""What a terminal or a pipe shows while `fleet tune` works."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from fleet.cli.tune_view import render_progress, state_text
from fleet.optimizer.core.progress import JobProgress, Phase
from fleet.optimizer.job import report_progress

logger = logging.getLogger(__name__)

_LONGEST_SILENCE_SEC = 5.0
_TICK_SEC = 0.5
_REFRESH_PER_SEC = 2.0
"""Slow on purpose: on one machine the display shares its cores with the measurements."""


@contextlib.contextmanager
def display(
    console: Console, progress: JobProgress, started_at: float, *, refresh_per_sec: float = _REFRESH_PER_SEC
) -> Iterator[None]:
    """Show the job live on a terminal; elsewhere print a line per phase and one every five seconds.

    Args:
        started_at: time.monotonic() at the start of the process [s].
    """
    if not console.is_terminal:
        # A pipe has no width. Unwrapped lines can be searched.
        printer = _LinePrinter(console, progress, started_at, is_detailed=logger.isEnabledFor(logging.INFO))
        progress.notice = lambda text: console.print(text, style="yellow", soft_wrap=True)
        progress.listener = printer.on_change
        with printer.ticking():
            yield
        return
    spinner = Spinner("dots")
    notices: deque[str] = deque()
    progress.notice = notices.append

    def print_notices() -> None:
        while notices:
            console.print(notices.popleft(), style="yellow")

    def view() -> RenderableType:
        # Here, since Rich moves its picture rightly only where what is above comes from the thread that draws it.
        print_notices()
        report = report_progress(progress, elapsed_sec=time.monotonic() - started_at)
        return render_progress(report, spinner, width=console.width)

    try:
        with Live(get_renderable=view, console=console, refresh_per_second=refresh_per_sec, transient=True):
            yield
    finally:
        print_notices()


class _LinePrinter:
    """Print a line when a phase begins, and the state of the job after five silent seconds.

    Args:
        is_detailed: print a line for each activity as well.
    """

    def __init__(self, console: Console, progress: JobProgress, started_at: float, *, is_detailed: bool) -> None:
        self._console = console
        self._progress = progress
        self._started_at = started_at
        self._is_detailed = is_detailed
        self._shown: tuple[Phase, str] | None = None
        self._printed_at = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def on_change(self) -> None:
        """Print the activity if it begins a phase."""
        found = self._progress.phase, self._progress.activity
        if not found[1] or found == self._shown:
            return
        if self._is_detailed:
            report = report_progress(self._progress, elapsed_sec=time.monotonic() - self._started_at)
            self._print(f"{found[1]}{state_text(report, self._progress)}")
        elif self._shown is None or self._shown[0] is not found[0]:
            self._print(found[1])
        self._shown = found

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """Print the state of the job every five seconds of silence while the block runs."""
        thread = threading.Thread(target=self._tick, name="progress lines", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _tick(self) -> None:
        while not self._ended.wait(_TICK_SEC):
            if time.monotonic() - self._printed_at >= _LONGEST_SILENCE_SEC and self._progress.activity:
                report = report_progress(self._progress, elapsed_sec=time.monotonic() - self._started_at)
                self._print(f"{self._progress.activity}{state_text(report, self._progress)}")

    def _print(self, text: str) -> None:
        with self._lock:
            self._console.print(f"{time.monotonic() - self._started_at:6.1f} s  {text}", soft_wrap=True)
            self._printed_at = time.monotonic()
