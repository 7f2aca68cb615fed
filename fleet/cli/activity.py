"""Progress of slow commands: a spinner on a terminal, lines on stderr elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from rich.text import Text

from fleet.base.text import printable
from fleet.cli.progress_lines import ProgressLines
from fleet.cli.terminal import CleanConsole

_PATIENCE_SEC = 2.0
"""Silence before the first line when piped. Faster commands print nothing, unless they report steps."""


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
    step, began_at, is_printed = text, time.monotonic(), False

    def write(line: str) -> None:
        nonlocal is_printed
        is_printed = True
        print(printable(line), file=sys.stderr, flush=True)

    def state() -> str:
        return f"{step} ({time.monotonic() - began_at:.0f} s)" if is_printed else step

    def narrate(said: str) -> None:
        nonlocal step, began_at
        step, began_at = said, time.monotonic()
        lines.print(said)

    lines = ProgressLines(write, state, first_silence_sec=_PATIENCE_SEC)
    with lines.ticking():
        yield narrate
