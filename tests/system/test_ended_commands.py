"""Commands ended by a signal: their exit codes, and removal of their temporary folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.base.scratch import remove_abandoned
from fleet.models.model import bundled_model
from fleet.testing import eventually_sync

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMANDS = {
    "export": (("export", "{model}", "-o", "{out}/m.fleet"), "compiling "),
    "tune": (("tune", "{model}", "--private", "--trials", "64", "--library", "{out}/lib"), "static schedule"),
}
"""Command line by name, and a step that it prints while it has temporary folders."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary folder with a short name: paths of sockets in it have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_temporary_folder_stays(command: str, number: signal.Signals, temporary: Path, tmp_path: Path) -> None:
    """After kill -9, the next command removes them. Before, a tune ended by SIGTERM had the exit code of Ctrl-C."""
    out, log = tmp_path / "out", tmp_path / "log"
    out.mkdir()
    words, step = COMMANDS[command]
    given = [word.format(model=bundled_model(), out=out) for word in words]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "fleet", *given],
            # Commands that share a state folder take turns on the cores, also with those of other tests.
            env={**os.environ, "TMPDIR": str(temporary), "XDG_STATE_HOME": str(tmp_path / "state")},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        eventually_sync(lambda: step in log.read_text(), 120.0)

        process.send_signal(number)

        assert process.wait(60) == (-9 if number == signal.SIGKILL else 128 + number), log.read_text()
    assert "Traceback" not in log.read_text()
    if number == signal.SIGKILL:
        eventually_sync(lambda: swept(temporary), 60.0)
    assert left_in(temporary) == []
    assert not (out / "m.fleet").exists()


def swept(temporary: Path) -> bool:
    """Remove abandoned folders, as the next command does. Children of the killed command end a moment later."""
    remove_abandoned(temporary)
    return not left_in(temporary)


def left_in(temporary: Path) -> list[Path]:
    """Return the entries of a temporary folder, without the session file of ONNX Runtime's telemetry."""
    return [path for path in temporary.iterdir() if path.name != ".ses"]
