"""A worker's leftover processes are found by properties that they cannot change: number, start, session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from device_agents.machine import linux
from device_agents.workers.ledger import Ledger
from device_agents.workers.strays import Strays
from fleet.testing import eventually

pytestmark = pytest.mark.slow

DAEMON = """
import os, sys, time
if os.fork():
    time.sleep(3600)
os.setsid() if "setsid" in sys.argv else None
print(os.getpid(), flush=True)
time.sleep(3600)
"""
"""A process that starts another, in a session of its own if asked to."""

NAMELESS = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b") \\xff", 0, 0, 0)
print("named", flush=True)
time.sleep(3600)
"""
"""A process with a name that is no valid text and looks as if it ended early."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, code: str = "import time; time.sleep(3600)", is_apart: bool = True) -> object:
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=is_apart)
        started.append(process)
        return process

    yield start_one  # type: ignore[misc]
    for process in started:
        process.kill()
        process.communicate()


def look_at(pid: int) -> linux.Process:
    process = linux.look_at(pid)
    assert process is not None
    return process


async def test_only_later_foreign_processes_are_strays(start: Start) -> None:
    """The agent's own children are spared: those in its session, those noted before, and keepers of other workers."""
    strays = Strays()
    server = start()
    strays.note_own()
    tool = start(is_apart=False)
    stray, keeper = start(), start()

    strays.kill([look_at(keeper.pid)])

    await eventually(lambda: not linux.is_running(stray.pid))
    assert all(linux.is_running(process.pid) for process in (server, tool, keeper))


async def test_zombies_of_other_sessions_are_reaped(start: Start) -> None:
    """A zombie is reaped the second time it is seen, and only in another session: the agent waits for its own tools."""
    strays, server, tool = Strays(), start(), start(is_apart=False)
    for process in (server, tool):
        linux.kill(process.pid)
        await eventually(lambda pid=process.pid: look_at(pid).state == "Z")

    strays.bury()
    assert look_at(server.pid).state == "Z"
    strays.bury()

    assert linux.look_at(server.pid) is None
    assert look_at(tool.pid).state == "Z"


async def test_a_restarted_agent_kills_listed_processes(start: Start, tmp_path: Path) -> None:
    """All of its descendants die, too, even after the death of their session's leader, and in another session."""
    leader, other = start(code=DAEMON), start("setsid", code=DAEMON)
    orphan, apart = (int(process.stdout.readline()) for process in (leader, other) if process.stdout)
    Ledger(tmp_path / "processes.json").keep(map(look_at, (leader.pid, other.pid)))
    leader.kill()
    leader.wait()
    assert linux.is_running(orphan)

    killed = Ledger(tmp_path / "processes.json").kill_listed()

    assert sorted(killed) == sorted([orphan, other.pid, apart])
    await eventually(lambda: not any(map(linux.is_running, killed)))


def test_a_number_that_was_given_again_is_spared(start: Start, tmp_path: Path) -> None:
    """It is another process if it started at another time, or after another boot; a torn list names none."""
    process = look_at(start().pid)
    path = tmp_path / "processes.json"
    Ledger(path).keep([linux.Process(**{**_fields(process), "started_ticks": process.started_ticks - 1})])
    assert Ledger(path).kill_listed() == []

    Ledger(path).keep([process])
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "boot_id": "another"}))
    assert Ledger(path).kill_listed() == []
    path.write_text(json.dumps(content)[:-9])
    assert Ledger(path).kill_listed() == []

    assert linux.is_running(process.pid)


def _fields(process: linux.Process) -> dict[str, object]:
    return {name: getattr(process, name) for name in ("pid", "state", "parent", "session", "started_ticks")}


def test_this_process_is_seen_as_it_is() -> None:
    """Parent, session and state are as the system calls report; an unused number has no process."""
    mine = look_at(os.getpid())

    assert (mine.parent, mine.session, mine.state) == (os.getppid(), os.getsid(0), "R")
    assert linux.look_at(2**22 + 1) is None


def test_a_process_may_have_any_name(start: Start) -> None:
    """A name that is no valid text kept the agent from starting, and a worker with one could not be reaped."""
    process = start(code=NAMELESS)
    assert process.stdout is not None
    process.stdout.readline()

    assert look_at(process.pid).parent == os.getpid()
