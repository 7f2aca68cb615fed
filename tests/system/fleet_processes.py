"""Real processes for system tests: a tracker and an agent to be killed and started again, and `fleet` commands."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fleet
from fleet.testing import eventually_sync
from fleet.wire.json_shape import snapshot_json
from tests.programs import environment

FLEET = str(Path(sys.executable).with_name("fleet"))


def connect(address: str) -> fleet.Fleet:
    """Return a client that waits for its tracker as long as a busy machine may take."""
    return fleet.connect(address, connect_timeout_sec=60)


@dataclass
class Server:
    """A tracker, or an agent that a tracker has, as a process of its own; on the same port whenever it starts again."""

    command: list[str]
    ready: str
    log: Path
    around: Sequence[str] = ()
    """Prefix of the command that runs it elsewhere, as in a network of its own."""

    process: subprocess.Popen[str] = field(init=False)
    address: str = field(init=False, default="")

    def start(self) -> Server:
        port = self.address.rpartition(":")[2] or "0"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*self.around, sys.executable, *self.command, "--port", port],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(rf"{self.ready} listening on (\S+?)(, serving|$)", line):
                self.address = match[1]
                return self
        raise AssertionError(f"{self.ready} did not start: {self.log.read_text()}")

    def kill(self) -> None:
        """kill -9, and reap."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Terminate it and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        code = self.process.wait(timeout=60)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


@dataclass
class Fleet:
    """One tracker and one agent."""

    tracker: Server
    agent: Server

    @property
    def address(self) -> str:
        return self.tracker.address

    def snapshot(self) -> dict[str, object]:
        """Return the output of `fleet status --json` without starting a process each time."""
        with connect(self.address) as client:
            return snapshot_json(client.snapshot())


@contextmanager
def running_fleet(
    directory: Path, config: str | None = None, *, around: Sequence[str] = (), host: str | None = None
) -> Iterator[Fleet]:
    """Run a tracker and an agent; `config` is the agent's YAML, this machine's CPU when None.

    Args:
        around: prefix of commands that run in another network; the agent may have no device yet then.
        host: the agent's address there, for others of that network.
    """
    tracker = Server(
        ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(directory / "tracker")],
        "tracker",
        directory / "tracker.log",
        around,
    ).start()
    words = ["-m", "device_agents", "--tracker", tracker.address, "--state-dir", str(directory / "agent")]
    if config is not None:
        (directory / "agent.yaml").write_text(config)
        words += ["--config", str(directory / "agent.yaml")]
    if host is not None:
        words += ["--host", host, "--allow-network"]
    agent = Server(words, "agent", directory / "agent.log", around)
    try:
        agent.start()
        served = Fleet(tracker, agent)
        if not around:
            eventually_sync(lambda: any(device["state"] == "available" for device in served.snapshot()["devices"]))  # type: ignore[attr-defined]
        yield served
    finally:
        for server in (agent, tracker):
            if hasattr(server, "process"):
                server.stop()


def run_fleet(*words: str, timeout_sec: float = 110, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a `fleet` command to its end."""
    return subprocess.run(
        [FLEET, *words], capture_output=True, text=True, timeout=timeout_sec, cwd=cwd, env=environment(), check=False
    )


def start_fleet(*words: str, around: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start a `fleet` command in a process group of its own; `around` is a prefix that runs it elsewhere."""
    return subprocess.Popen(
        [*around, FLEET, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
