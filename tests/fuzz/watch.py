"""Runs one input and judges its outcome, time, memory and the longest stall of an event loop.

Times are processor times, so other work of the machine counts little.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target

_REPOSITORY = Path(__file__).parents[2]


class Finding(Exception):
    """A harmful effect of an input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits for one input."""

    cpu_sec: float
    turn_sec: float
    """Of an event loop."""

    memory_mib: float
    """Beyond the process's memory before it."""


STRICT = Limits(cpu_sec=1.0, turn_sec=0.05, memory_mib=96.0)
"""For an idle machine."""

LAX = Limits(cpu_sec=20.0, turn_sec=10.0, memory_mib=512.0)
"""For tests, which run beside others: finds gross violations only."""

_TRIES = 3
"""An input is too slow only if it is so in each of these tries: Python collects its garbage when it likes."""


@dataclass(slots=True, kw_only=True)
class Taken:
    """The most that any input took so far."""

    cpu_sec: float = 0.0
    turn_sec: float = 0.0
    memory_mib: float = 0.0

    def note(self, other: Taken) -> None:
        """Take the larger of each."""
        self.cpu_sec = max(self.cpu_sec, other.cpu_sec)
        self.turn_sec = max(self.turn_sec, other.turn_sec)
        self.memory_mib = max(self.memory_mib, other.memory_mib)


def check(target: Target, content: bytes, limits: Limits) -> Taken:
    """Run an input.

    Raises:
        Finding: it exceeded a limit, and does so again. Any other exception is one, too.
    """
    taken = _taken(target, content)
    for _ in range(_TRIES - 1):
        if not _exceeds(taken, limits):
            return taken
        again = _taken(target, content)
        taken.cpu_sec, taken.turn_sec = min(taken.cpu_sec, again.cpu_sec), min(taken.turn_sec, again.turn_sec)
    if said := _exceeds(taken, limits):
        raise Finding(said)
    return taken


def place_of(error: BaseException) -> str:
    """Return the error and its place, to tell findings apart: the innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame for frame in frames if Path(frame.filename).is_relative_to(_REPOSITORY) and ".venv" not in frame.filename
    ]
    last = own[-1] if own else frames[-1]
    what = str(error).split(":")[0][:60] if isinstance(error, Finding) else type(error).__name__
    return f"{what} at {Path(last.filename).name}:{last.lineno}"


def _taken(target: Target, content: bytes) -> Taken:
    _forget_peak()
    before_mib, started = _peak_mib(), time.thread_time()
    turn_sec = target.run(content)
    took_sec = time.thread_time() - started
    return Taken(cpu_sec=took_sec, turn_sec=turn_sec, memory_mib=_peak_mib() - before_mib)


def _exceeds(taken: Taken, limits: Limits) -> str:
    if taken.memory_mib > limits.memory_mib:
        return f"memory: {taken.memory_mib:.0f} MiB"
    if taken.turn_sec > limits.turn_sec:
        return f"turn: {taken.turn_sec * 1e3:.0f} ms"
    return f"time: {taken.cpu_sec:.2f} s" if taken.cpu_sec > limits.cpu_sec else ""


@functools.cache
def _forgetting() -> int:
    return os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)


def _forget_peak() -> None:
    """Reset the memory peak to the present use: proc(5), "clear_refs". Where that is not allowed, less is found."""
    with contextlib.suppress(OSError):
        os.write(_forgetting(), b"5")


def _peak_mib() -> float:
    """Return the most memory that this process has had since."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
