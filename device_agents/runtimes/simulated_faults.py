"""Faults of simulated artifacts in their worker, by their first word: crash, hang, exhaust memory, fill the disk.

They are done and not pretended: the process is a real one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from device_agents.machine.frames import format_frame
from device_agents.runtimes.contract import CandidateFailed
from fleet.domain.measuring import ErrorKind

_HANG_SEC = 3600.0
_PR_SET_NAME = 15
_MIB = 1024 * 1024

_BROKEN: list[str] = []
"""Error that broke this process for good, as a CUDA error that stays with the context does."""


def refuse_if_broken() -> None:
    """Fail every run after the fault "break"."""
    if _BROKEN:
        raise CandidateFailed(ErrorKind.RUN_FAILED, f"still broken: {_BROKEN[0]}")


def _crash(_: str) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang(_: str) -> None:
    time.sleep(_HANG_SEC)


def _sleep(rest: str) -> None:
    time.sleep(float(rest.split()[0]))


def _exit(rest: str) -> None:
    os._exit(int(rest or "0"))


def _eat_memory(_: str) -> None:
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(4096)) * (16 * _MIB // 4096))


_LEAKED: list[bytearray] = []


def _leak(rest: str) -> None:
    """Allocate some MiB for the life of the process."""
    _LEAKED.append(bytearray(os.urandom(4096)) * (int(rest.split()[0]) * _MIB // 4096))


def _fill_disk(_: str) -> None:
    number = 0
    while True:
        number += 1
        Path(f"filler-{number}").write_bytes(bytes(_MIB))
        time.sleep(0.001)


def _fill_file(_: str) -> None:
    with Path("filler").open("wb") as file:
        while True:
            file.write(bytes(_MIB))


def _dig(_: str) -> None:
    """Nest folders deeper than the longest path."""
    for _depth in range(1200):
        Path("deep" * 50).mkdir()
        os.chdir("deep" * 50)
    time.sleep(_HANG_SEC)


def _rename_and_crash(_: str) -> None:
    """Rename the process to undecodable bytes, and crash."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b") \xff", 0, 0, 0)
    _crash("")


def _scribble(_: str) -> None:
    """Write an invalid frame to every open socket, including the agent's."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if path.is_socket():
                os.write(int(path.name), format_frame(b"\xff\xff\xff"))


def _close_descriptors(_: str) -> None:
    os.closerange(0, 256)


def _leave_child(_: str) -> None:
    """Leave a grandchild in a session of its own, as a daemon does."""
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(_HANG_SEC)


def _kill_parent(_: str) -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(_HANG_SEC)


def _chatter(_: str) -> None:
    while True:
        os.write(1, b"all work and no play makes a dull kernel\n" * 1000)


def _say(rest: str) -> None:
    os.write(1, rest.encode() + b"\n")


def _raise(rest: str) -> None:
    raise CandidateFailed(ErrorKind.RUN_FAILED, rest or "the kernel raised an error")


def _refuse_arguments(rest: str) -> None:
    raise CandidateFailed(ErrorKind.BAD_ARGUMENTS, rest or "the arguments do not fit")


def _refuse_load(rest: str) -> None:
    raise CandidateFailed(ErrorKind.LOAD_FAILED, rest or "the artifact cannot be loaded")


def _break_for_good(message: str) -> None:
    _BROKEN.append(message)
    raise CandidateFailed(ErrorKind.RUN_FAILED, message, is_fatal=True)


FAULTS: dict[str, Callable[[str], None]] = {
    "crash": _crash,
    "abort": lambda _: os.abort(),
    "hang": _hang,
    "sleep": _sleep,
    "exit": _exit,
    "oom": _eat_memory,
    "leak": _leak,
    "disk": _fill_disk,
    "bigfile": _fill_file,
    "dig": _dig,
    "nameless": _rename_and_crash,
    "close_fds": _close_descriptors,
    "scribble": _scribble,
    "fork": _leave_child,
    "killparent": _kill_parent,
    "chatter": _chatter,
    "say": _say,
    "raise": _raise,
    "bad_arguments": _refuse_arguments,
    "load_failed": _refuse_load,
    "break": _break_for_good,
}
"""Faults of pretend artifacts by their first word."""
