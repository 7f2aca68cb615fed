"""Progress output of `fleet tune` on a terminal or pipe."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from fleet.cli.progress_lines import ProgressLines
from fleet.cli.tune_view import render_progress, state_text
from fleet.optimizer.core.progress import JobProgress, Phase
from fleet.optimizer.narrator import narrate
from fleet.optimizer.reporting import report_progress

logger = logging.getLogger(__name__)

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
        # A pipe has no width: unwrapped lines can be searched.
        printer = _Printer(console, progress, started_at, is_detailed=logger.isEnabledFor(logging.INFO))
        progress.notice = lambda text: console.print(text, style="yellow", soft_wrap=True)
        progress.listener = printer.on_change
        with printer.lines.ticking():
            yield
        return
    spinner = Spinner("dots")
    notices: deque[str] = deque()
    progress.notice = notices.append

    def print_notices() -> None:
        while notices:
            console.print(notices.popleft(), style="yellow")

    def view() -> RenderableType:
        # Printed here, since Rich redraws correctly only if lines above come from the thread that draws.
        print_notices()
        report = report_progress(progress, elapsed_sec=time.monotonic() - started_at)
        return render_progress(report, spinner, width=console.width)

    try:
        with Live(get_renderable=view, console=console, refresh_per_second=refresh_per_sec, transient=True):
            yield
    finally:
        print_notices()


class _Printer:
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
        self.lines = ProgressLines(self._write, self._state)

    def on_change(self) -> None:
        """Print the activity if it begins a phase."""
        found = self._progress.phase, narrate(self._progress.activity)
        if not found[1] or found == self._shown:
            return
        if self._is_detailed:
            self.lines.print(self._state())
        elif self._shown is None or self._shown[0] is not found[0]:
            self.lines.print(found[1])
        self._shown = found

    def _state(self) -> str:
        """Return the activity and the state of the job; empty without an activity."""
        if not (activity := narrate(self._progress.activity)):
            return ""
        report = report_progress(self._progress, elapsed_sec=time.monotonic() - self._started_at)
        return f"{activity}{state_text(report, self._progress)}"

    def _write(self, text: str) -> None:
        self._console.print(f"{time.monotonic() - self._started_at:6.1f} s  {text}", soft_wrap=True)
