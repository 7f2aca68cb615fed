"""What stands on a terminal while `fleet tune` runs: messages above a picture that is drawn over and over."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from fleet.cli.tune_display import display
from fleet.optimizer.core.progress import JobProgress
from tests.unit.test_optimizer_progress import progress

_PART = re.compile(r"\x1b\[\??(?P<count>[\d;]*)(?P<verb>[A-Za-z])|[\r\n]|[^\x1b\r\n]+")


def lines_left(written: str) -> list[str]:
    """Return the lines that a terminal shows in the end, without blank ones. It knows what Rich writes."""
    rows: dict[int, str] = {}
    row = column = 0
    for part in _PART.finditer(written):
        text, verb = part[0], part["verb"]
        if text == "\n":
            row, column = row + 1, 0
        elif text == "\r":
            column = 0
        elif verb == "A":
            row -= int(part["count"] or 1)
        elif verb == "K":
            rows[row] = ""
        elif verb is None:
            rows[row] = rows.get(row, "")[:column].ljust(column) + text + rows.get(row, "")[column + len(text) :]
            column += len(text)
    return [rows[row] for row in sorted(rows) if rows[row].strip()]


def test_messages_stay_and_the_picture_goes() -> None:
    """Messages come from another thread than the one that draws, and the picture's height changes all the time."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=60, color_system=None, markup=False)
    running = JobProgress(trials_total=10)
    messages = [f"message {number}" for number in range(300)]

    with display(console, running, time.monotonic(), refresh_per_sec=300):
        for number, message in enumerate(messages):
            running.workloads = [progress(f"w{each}", untuned_sec=1e-3) for each in range(number % 9)]
            running.notice(message)
            time.sleep(0.001 * (number % 4))

    assert lines_left(out.getvalue()) == messages


def test_a_pipe_gets_a_line_for_each_thing_that_a_job_does() -> None:
    """None twice, none for the end, when it does nothing."""
    out, running = io.StringIO(), JobProgress()

    with display(Console(file=out, width=40), running, 0.0):
        for activity in ("importing", "importing", "measuring", ""):
            running.activity = activity
            running.listener()

    assert [line.split()[-1] for line in out.getvalue().splitlines()] == ["importing", "measuring"]
