"""Another account of the machine polls the command lines of all processes while members join."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.testing import eventually_sync
from tests.programs import environment
from tests.system.fleet_processes import FLEET, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_AS_ANOTHER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
"""Command prefix that changes the account. Without root, the same account watches: it sees the same command lines."""

_WATCHER = """
import os, sys
seen = set()
print("watching", flush=True)
os.set_blocking(0, False)
while sys.stdin.buffer.read(1) is None:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = open(f"/proc/{pid}/cmdline", "rb").read().replace(bytes(1), b" ").decode(errors="replace")
        except OSError:
            continue
        if ("JOINS-HERE" in line or "fleet1." in line) and line not in seen and int(pid) != os.getpid():
            seen.add(line)
            print(line, flush=True)
"""


@contextmanager
def watched_command_lines() -> Iterator[Callable[[], list[str]]]:
    """Poll /proc/*/cmdline as another account. Yield a function that stops polling and returns the lines."""
    command = [*_AS_ANOTHER, sys.executable, "-S", "-c", _WATCHER]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert process.stdout is not None
    assert process.stdout.readline() == "watching\n"

    def stop() -> list[str]:
        return process.communicate("stop", timeout=60)[0].splitlines()

    try:
        yield stop
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def tracker(tmp_path: Path) -> Iterator[Server]:
    arguments = ["-m", "fleet.tracker", "--no-discovery", "--state-dir", str(tmp_path / "tracker")]
    server = Server(arguments, "tracker", tmp_path / "tracker.log").start()
    yield server
    server.stop()


class Joiner:
    """An account that joins once in each documented way."""

    def __init__(self, tracker: Server, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        own = {f"FLEET_{name.upper()}_DIR": str(folder / name) for name in ("credentials", "data")}
        self._environment = {**environment(), **own, "FLEET_TRACKER": tracker.address}
        self._at_tracker = {**environment(), "FLEET_TRACKER": tracker.address}

    def token(self, role: str) -> str:
        words = [FLEET, "tracker", "token", "create", "--role", role]
        done = subprocess.run(words, env=self._at_tracker, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.strip()

    def private_file(self, role: str) -> Path:
        path = self._folder / f"JOINS-HERE.{role}.token"
        path.touch(mode=0o600)
        path.write_text(self.token(role))
        return path

    def join(self, *words: str, token: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the token on its stdin."""
        return subprocess.run(
            [FLEET, *words], env=self._environment, input=token, capture_output=True, text=True, check=False, timeout=60
        )

    def join_at_terminal(self, *words: str, token: str) -> int:
        """Type the token at the command's prompt."""
        main, terminal = os.openpty()
        process = subprocess.Popen(
            [FLEET, *words],
            env=self._environment,
            stdin=terminal,
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            start_new_session=True,
        )
        os.close(terminal)
        shown = b""
        while b"not shown" not in shown:
            shown += os.read(main, 4096)
        os.write(main, f"{token}\n".encode())
        code = process.wait(timeout=60)
        os.close(main)
        return code

    def serve(self, state_dir: str, source: str, token: str) -> bool:
        """Start a board's agent that joins first; return True if it served."""
        config = self._folder / f"{state_dir}.yaml"
        config.write_text(f"devices: [{{driver: simulated, name: {state_dir.lower()}}}]\n")
        words = ["-m", "device_agents", "--config", str(config), "--state-dir", str(self._folder / state_dir)]
        process = subprocess.Popen(
            [sys.executable, *words, "--tracker", self._environment["FLEET_TRACKER"], "--token-file", source],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{token}\n")
            process.stdin.flush()
            return "serving" in process.stdout.readline()
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_no_token_is_in_any_command_line_while_members_join(tracker: Server, tmp_path: Path) -> None:
    """Ten joins in all documented ways succeed and expose no token. Before, 10 of 10 tokens could be stolen."""
    joiner, mark = Joiner(tracker, tmp_path / "joiner"), str(tmp_path / "JOINS-HERE")
    agent = ("agent", "join", "--state-dir")
    with watched_command_lines() as stop:
        for number in range(2):
            here = f"{mark}-{number}"
            assert joiner.join("login", "--name", here, token=joiner.token("user")).returncode == 0
            assert joiner.join(*agent, here, token=joiner.token("agent")).returncode == 0
        assert joiner.join_at_terminal("login", "--name", mark, token=joiner.token("admin")) == 0
        assert joiner.join_at_terminal(*agent, f"{mark}-t", token=joiner.token("agent")) == 0
        for role, words in (("user", ("login",)), ("agent", (*agent, f"{mark}-f"))):
            path = joiner.private_file(role)
            assert joiner.join(*words, "--token-file", str(path), token="").returncode == 0
        assert joiner.serve("JOINS-HERE-stdin", "-", joiner.token("agent"))
        assert joiner.serve("JOINS-HERE-file", str(joiner.private_file("agent")), "")
        seen = stop()

    assert [] == [line for line in seen if "fleet1." in line]
    assert len([line for line in seen if "JOINS-HERE" in line]) >= 10, seen


def test_the_watcher_sees_a_token_that_is_an_argument(tracker: Server, tmp_path: Path) -> None:
    """Control test: the refused form exposes its token. Only its owner can still use that token."""
    joiner = Joiner(tracker, tmp_path / "joiner")
    token = joiner.token("user")
    with watched_command_lines() as stop:
        refused = joiner.join("login", token, token="")
        seen = stop()

    assert (2, True) == (refused.returncode, "fleet tracker token revoke" in refused.stderr)
    assert [line for line in seen if token in line]
    eventually_sync(lambda: joiner.join("login", token=token).returncode == 0)
