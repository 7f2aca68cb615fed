"""Other processes of a user cannot inspect the memory of those that hold keys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.fleet_processes import running_fleet

_AS_A_USER = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Root may look into everything, by a capability."""


def is_seen(pid: int) -> bool:
    """Tell whether another process of the same user can read a process's memory, shown by its environment."""
    command = [*_AS_A_USER, "cat", f"/proc/{pid}/environ"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_memory_of_tracker_and_agent_is_their_own(tmp_path: Path) -> None:
    """No other process of their user reads it or attaches to them, as it can to any other program."""
    idle = [sys.executable, "-c", "print(flush=True); input()"]
    other = subprocess.Popen([*_AS_A_USER, *idle], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        with running_fleet(tmp_path, "devices: [{driver: simulated}]\n", around=_AS_A_USER) as fleet:
            processes = (other, fleet.tracker.process, fleet.agent.process)
            assert [is_seen(process.pid) for process in processes] == [True, False, False]
    finally:
        other.communicate(b"\n")
