"""Progress of commands with a pipe as stderr."""

from __future__ import annotations

import sys
import threading
import time

import pytest

from fleet.cli import activity, progress_lines
from fleet.cli.activity import working


def wait_for(text: str, capsys: pytest.CaptureFixture[str], seen: list[str]) -> None:
    """Collect printed output until it contains the text."""
    limit = time.monotonic() + 30
    while text not in "".join(seen):
        assert time.monotonic() < limit, seen
        seen.append(capsys.readouterr().err)
        time.sleep(0.01)


def test_a_quick_command_prints_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """A progress line for a short command is noise."""
    with working("reading"):
        pass

    assert capsys.readouterr() == ("", "")


def test_steps_are_lines_and_silence_has_a_heartbeat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, a piped build of a large model was silent for minutes."""
    monkeypatch.setattr(activity, "_PATIENCE_SEC", 0.01)
    monkeypatch.setattr(progress_lines, "LONGEST_SILENCE_SEC", 0.02)
    monkeypatch.setattr(progress_lines, "_TICK_SEC", 0.01)
    seen: list[str] = []

    with working("building it") as say:
        wait_for("building it\nbuilding it (0 s)\n", capsys, seen)
        say("compiling [/x]")
        wait_for("compiling [/x]\ncompiling [/x] (0 s)\n", capsys, seen)

    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


def test_a_reader_that_is_gone_does_not_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fleet build ... 2>&1 | head -1` completes the build."""

    class Broken:
        encoding = "utf-8"

        def write(self, _text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(activity, "_PATIENCE_SEC", 0.0)
    monkeypatch.setattr(progress_lines, "_TICK_SEC", 0.01)
    monkeypatch.setattr(sys, "stderr", Broken())

    with working("building it") as say:
        say("compiling")
        time.sleep(0.2)
