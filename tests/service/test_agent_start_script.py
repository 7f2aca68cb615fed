"""The results of `fleet agent deploy`'s scripts on a board, with a bundle whose agent only reports that it serves.

A script stands in for systemd, logs its calls and runs the unit's command: users have no systemd in a container.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "cross/bundle/deploy_files"
SERVICE = SCRIPTS.parent / "files/fleet-agent.service"
READY = '{"address": "127.0.0.1:1", "devices": ["devices/x"]}'
SERVES = f"print(sys.argv[1:], flush=True); open(os.environ['AGENT_READY_FILE'], 'w').write({READY!r}); time.sleep(60)"
FAILS = "sys.exit('broken')"
CLAIMS = "print('agent listening on 127.0.0.1:1, serving devices/x'); sys.exit('broken')"
RUN = """#!/bin/sh
[ "$1" = --check ] || exec python3 -u "$(dirname "$0")/start.py" "$@"
"""
SYSTEMCTL = """#!/bin/sh
shift
active=$HOME/active
case "$1" in
  is-active) [ -e "$active" ] ;;
  enable) : >"$HOME/enabled" ;;
  disable) rm -f "$HOME/enabled" ;;
  stop) kill "$(cat "$active")"; rm -f "$active" ;;
  restart)
    unit=$HOME/.config/systemd/user/fleet-agent.service
    cd "$(sed -n 's/^WorkingDirectory=//p' "$unit")" || exit 1
    export "$(sed -n 's/^Environment=//p' "$unit")"
    ./run >>agent.log 2>&1 </dev/null &
    echo $! >"$active" ;;
esac
"""


class Board:
    """A home directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "fleet-agent"
        (home / "bin").mkdir(parents=True)
        for name, content in (("systemctl", SYSTEMCTL), ("loginctl", "#!/bin/sh\n")):
            (home / "bin" / name).write_text(content)
            (home / "bin" / name).chmod(0o755)

    def start(self, what: str, way: str, options: str = "") -> str:
        """Bring a bundle with this agent, start it, and return the output."""
        bundle = self.home / "fleet-agent.new/fleet-agent"
        bundle.mkdir(parents=True)
        (bundle / "start.py").write_text(f"import os, sys, time\n{what}\n")
        (bundle / "run").write_text(RUN)
        (bundle / "run").chmod(0o755)
        shutil.copy(SERVICE, bundle)
        return self._run("start.sh", str(self.directory), way, options)

    def options(self) -> str:
        """Return the options as the next deployment sees them."""
        told = self._run("look.sh", str(self.directory))
        return dict(line.split("=", 1) for line in told.splitlines())["options"]

    def end(self) -> None:
        for file in (self.directory / "agent.pid", self.home / "active"):
            if file.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(file.read_text()), signal.SIGKILL)

    def _run(self, script: str, *words: str) -> str:
        environment = {**os.environ, "HOME": str(self.home), "PATH": f"{self.home}/bin:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-s", "--", *words],
            input=(SCRIPTS / script).read_text(),
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
            check=True,
        )
        return done.stdout


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    board = Board(tmp_path / "home")
    yield board
    board.end()


def test_rollback_restores_the_previous_service(board: Board) -> None:
    """A service is a service again, or the next restart would take the board out of the fleet."""
    board.start(SERVES, "systemd")

    said = board.start(FAILS, "nohup")

    assert "back: the agent that ran before runs again" in said
    assert (board.home / "enabled").exists()
    assert (board.home / "active").exists()
    assert not (board.directory / "agent.pid").exists()


def test_options_reach_the_agent_as_they_are(board: Board) -> None:
    """Options arrive unchanged, even those that a shell's echo would alter, and the next deployment finds no change."""
    options = ["--state-dir", r"a\new 'place'"]

    said = board.start(SERVES, "nohup", shlex.join(options))

    assert READY in said
    assert str(options) in (board.directory / "agent.log").read_text()
    assert shlex.join(options) == board.options()


def test_the_agents_output_is_no_report_of_readiness(board: Board) -> None:
    """Only the file counts: an agent that prints that it serves, and ends, gives way to the one before."""
    board.start(SERVES, "nohup")

    said = board.start(CLAIMS, "nohup")

    assert "broken" in said
    assert "back: the agent that ran before runs again" in said


def test_an_absent_original_is_not_restored(board: Board) -> None:
    """An empty folder holds no agent that could run again."""
    board.directory.mkdir()

    said = board.start(FAILS, "nohup")

    assert "broken" in said
    assert "back:" not in said
