"""Terminal output of a running `fleet tune`: messages above a picture that is redrawn over and over."""

from __future__ import annotations

import io
import logging
import re
import time

import pytest
from rich.console import Console

from fleet.cli import progress_lines
from fleet.cli.tune_display import display
from fleet.optimizer.core.news import News, Topic
from fleet.optimizer.core.progress import JobProgress, Phase
from fleet.testing import eventually_sync
from tests.unit.test_optimizer_progress import progress

_PART = re.compile(r"\x1b\[\??(?P<count>[\d;]*)(?P<verb>[A-Za-z])|[\r\n]|[^\x1b\r\n]+")


def lines_left(written: str) -> list[str]:
    """Return the lines that a terminal finally shows, without blank ones, given the control codes that Rich writes."""
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


ACTIVITIES = (
    (Phase.IMPORT, "importing"),
    (Phase.IMPORT, "importing"),
    (Phase.SEARCH, "searching"),
    (Phase.SEARCH, "building"),
    (Phase.SEARCH, "measuring"),
    (Phase.MODEL, "compiling"),
    (Phase.MODEL, ""),
)


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (logging.WARNING, ["importing", "searching", "compiling"]),
        (logging.INFO, ["importing", "searching", "building", "measuring", "compiling"]),
    ],
)
def test_a_pipe_gets_a_line_for_each_phase(level: int, expected: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """Before, the demo printed 250 lines. With --log-level info, each activity has one line, at its start only."""
    out, running = io.StringIO(), JobProgress()
    caplog.set_level(level)

    with display(Console(file=out, width=40), running, 0.0):
        for running.phase, detail in ACTIVITIES:
            running.activity = News(topic=Topic.TEXT, detail=detail) if detail else None
            running.listener()

    assert expected == [line.split()[2].rstrip(";") for line in out.getvalue().splitlines()]


def test_a_silent_pipe_gets_the_state_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has trials, the best so far and the time left, even if nothing new has begun."""
    monkeypatch.setattr(progress_lines, "LONGEST_SILENCE_SEC", 0.05)
    monkeypatch.setattr(progress_lines, "_TICK_SEC", 0.01)
    searching = News(topic=Topic.TEXT, detail="searching")
    out, running = io.StringIO(), JobProgress(trials_total=40, activity=searching, phase=Phase.SEARCH)
    running.workloads = [progress("w", untuned_sec=2e-3)]
    running.workloads[0].trials = 10
    running.results_at_sec.extend(float(number) for number in range(25))

    with display(Console(file=out, width=40), running, time.monotonic() - 30):
        eventually_sync(lambda: "searching" in out.getvalue(), 10.0)

    assert "searching; 10/40 trials; all operators " in out.getvalue()
    assert "untuned 4 ms; about 30 s of search left (30 to 30)" in out.getvalue()
