"""Main loop of a build pool's worker process: takes tasks from a pipe, one at a time, until the pipe ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from cross.pool.confined import Confined
from cross.targets.target import Target
from fleet.confinement.process import confine
from fleet.errors import BuildError, FleetError

_PR_SET_PDEATHSIG = 1
_MESSAGE_LINES = 8


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker is warm."""

    pid: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a task: a value, or an error that pickles."""

    value: object = None
    error: FleetError | None = None


def serve(connection: Connection, log_path: str, target: Target | None) -> None:
    """Run tasks until the other end closes. Output goes to `log_path`, temporary files to the folder of that file."""
    _die_with_parent()
    os.setsid()
    _redirect_output(log_path)
    # Killed compilers leave files here. The pool removes this folder; nothing cleans up $TMPDIR.
    os.environ["TMPDIR"] = tempfile.tempdir = str(Path(log_path).parent)
    # Imports of tasks (PyTorch, tqdm) would create named semaphores, which a killed worker never releases.
    # multiprocessing would report them as leaked at exit.
    multiprocessing.set_start_method("fork", force=True)
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"
    try:
        _warm_up(target)
    except (ImportError, FleetError) as error:
        connection.send(Answer(error=_as_fleet_error(error)))
        return
    connection.send(Ready(os.getpid()))
    while True:
        try:
            task = connection.recv_bytes()
        except (EOFError, OSError):
            return
        os.ftruncate(1, 0)
        answer, is_last = _run(task, f"{log_path}.scratch")
        _send(connection, answer)
        if is_last:
            return


def _warm_up(target: Target | None) -> None:
    """Import the modules that tasks need; free if the fork server has imported them."""
    import cross.pool.warm  # noqa: F401
    from cross.targets.intrinsics import load_intrinsics

    if target:
        load_intrinsics(target)


def _run(task: bytes, folder: str) -> tuple[Answer, bool]:
    """Run a task. Return its answer, and True if the worker is now confined and must take no other task."""
    import pickle

    is_confined = False
    try:
        call = pickle.loads(task)  # noqa: S301 - written by the process that forked this one
        if isinstance(call.func, Confined):
            is_confined = True
            confine(call.func.files, folder)
        return Answer(value=call()), is_confined
    except Exception as error:  # noqa: BLE001 - a task may fail in any way; the worker reports it and goes on
        return Answer(error=_as_fleet_error(error)), is_confined


def _send(connection: Connection, answer: Answer) -> None:
    try:
        connection.send(answer)
    except Exception as error:  # noqa: BLE001 - a value that does not pickle is the task's error, too
        connection.send(Answer(error=_as_fleet_error(error)))


def _as_fleet_error(error: BaseException) -> FleetError:
    """Pass our own errors on unchanged and convert others: TVM's do not even pickle."""
    if isinstance(error, FleetError):
        error.__cause__ = error.__context__ = None
        return error
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return BuildError(f"{type(error).__name__}: " + "\n".join(lines[-_MESSAGE_LINES:]))


def _die_with_parent() -> None:
    """Have the kernel kill this process when the fork server ends, which ends with the pool's process.

    The server detects that by a pipe. Multiprocessing hands its other end to every child, so that children can have
    children; a busy worker would keep the server alive by it, so it is closed here.
    """
    alive_fd = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_alive_fd", None)
    if alive_fd is not None:
        os.close(alive_fd)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect_output(log_path: str) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
