"""An agent on an emulated board, started from its bundle as a user would: unpack, run."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cross.bundle.archive import Bundle
from fleet.testing.identity import join_token
from tests.emulated.board import HOME, EmulatedBoard

_START_SEC = 60


@dataclass
class BoardAgent:
    """The agent of one board; `start` again after `kill` gives another one with the same state."""

    board: EmulatedBoard
    tracker: str
    config: str
    log: Path
    process: subprocess.Popen[str] = field(init=False)

    def unpack(self, bundle: Bundle) -> None:
        """Put the bundle into the board's home directory."""
        self.board.path(f"{HOME}/agent.tar.xz").write_bytes(bundle.path.read_bytes())
        done = self.board.run("sh", "-c", "cd && tar xf agent.tar.xz && ./fleet-agent/run --check")
        assert done.returncode == 0, done.stderr
        self.board.write(f"{HOME}/agent.yaml", self.config)

    def start(self) -> None:
        """Start it and wait until it listens."""
        # A board has its own account: it joins by a token, the first time.
        words = (f"{HOME}/fleet-agent/run", "--tracker", self.tracker, "--config", f"{HOME}/agent.yaml")
        self.board.write(f"{HOME}/join.token", join_token(self.tracker))
        self.board.path(f"{HOME}/join.token").chmod(0o600)
        words += ("--token-file", f"{HOME}/join.token")
        with self.log.open("a") as log:
            self.process = self.board.popen(*words, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.match(r"agent listening on \S+, serving", line):
                return
        raise AssertionError(f"the agent did not start: {self.log.read_text()[-3000:]}")

    def workers(self) -> list[psutil.Process]:
        """Return the processes that run kernels, at any depth below their keepers."""
        agent = psutil.Process(self.process.pid)
        own = agent.children()
        return [process for process in agent.children(recursive=True) if process not in own and not process.children()]

    def kill(self) -> None:
        """kill -9, and reap."""
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        """Terminate it, and wait."""
        if self.process.poll() is None:
            self.process.terminate()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(timeout=30)
        if self.process.stdout is not None:
            self.process.stdout.close()
