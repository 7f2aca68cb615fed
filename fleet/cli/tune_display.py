"""What a terminal or a pipe shows while `fleet tune` works."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner

from fleet.cli.tune_view import render_progress
from fleet.domain.jobs import trials_text
from fleet.optimizer.core.progress import JobProgress
from fleet.optimizer.job import report_progress

_REFRESH_PER_SEC = 2.0
"""Slow on purpose: on one machine the display shares its cores with the measurements."""


@contextlib.contextmanager
def display(
    console: Console, progress: JobProgress, started_at: float, *, refresh_per_sec: float = _REFRESH_PER_SEC
) -> Iterator[None]:
    """Show the job live on a terminal; elsewhere print a line whenever it does something new.

    Args:
        started_at: time.monotonic() at the start of the process [s].
    """
    if not console.is_terminal:
        # A pipe has no width: who greps it wants whole lines.
        progress.notice = lambda text: console.print(text, style="yellow", soft_wrap=True)
        progress.listener = _line_printer(console, progress, started_at)
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


def _line_printer(console: Console, progress: JobProgress, started_at: float) -> Callable[[], None]:
    last = ""

    def on_change() -> None:
        nonlocal last
        if progress.activity in ("", last):
            return
        last = progress.activity
        done = f" ({trials_text(progress.trials_done, progress.trials_asked)} trials)" if progress.trials_total else ""
        console.print(f"{time.monotonic() - started_at:6.1f} s  {last}{done}", soft_wrap=True)

    return on_change
