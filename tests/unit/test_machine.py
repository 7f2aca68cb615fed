"""Facts that a process reads about its machine and itself."""

from __future__ import annotations

import subprocess
import sys
import time

_TICK_SEC = 0.011
"""The kernel records process start times in hundredths of a second."""


def test_a_process_knows_its_age_to_a_hundredth_of_a_second() -> None:
    """The age is at least the time since the first statement, and at most the time since the start was requested."""
    program = "import time; born = time.monotonic(); from fleet.base.machine import process_age_sec as age\n"
    program += "print(age(), time.monotonic() - born)"
    asked_at = time.monotonic()

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    age_sec, running_sec = map(float, said.split())
    assert running_sec - _TICK_SEC <= age_sec <= time.monotonic() - asked_at + _TICK_SEC
