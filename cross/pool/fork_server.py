"""The process that workers of build pools are forked from: one per process that has pools.

It takes half a second of a core to be warm, so that a program that will need a pool starts it before the rest of itself
is imported: this module imports next to nothing.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

from cross.targets.target import Target
from fleet.base.environment import without_secrets
from fleet.base.scratch import own, remove_abandoned
from fleet.errors import ConfigError

MAIN_PATH_VARIABLE = "CROSS_POOL_MAIN_PATH"
MAIN_NAME_VARIABLE = "CROSS_POOL_MAIN_NAME"
TARGET_VARIABLE = "CROSS_POOL_TARGET"
MODULES_VARIABLE = "CROSS_POOL_MODULES"

_THREADS_VARIABLE = "OMP_NUM_THREADS"
"""One thread for each worker: xgboost and numpy ask for it when they are loaded, before a worker is forked. With one
for each core, threads that waited for each other took half of a search's processor time."""

_SOCKET_PATH_BYTES = 107
"""Longest path of a Unix socket on Linux."""

_SOCKET_NAME_BYTES = len("/pymp-12345678/listener-12345678")
"""Path of the server's socket within the temporary folder, as multiprocessing names it."""

_SHORT_ROOTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - multiprocessing makes a private folder in one of them

starting = threading.Lock()
"""Held while a process is started from the server, which is not thread-safe."""


def start_fork_server(target: Target | None = None, modules: Sequence[str] = ()) -> None:
    """Start the server unless this process has one, and return at once: the server warms up in the background.

    Args:
        target: load this target's tensor intrinsics, which must exist, too; None: those of none.
        modules: import these as well, where they are installed, or each worker that needs them does.

    Raises:
        ConfigError: no temporary folder has a short enough path for a socket.
    """
    main = sys.modules["__main__"]
    variables = {
        MAIN_PATH_VARIABLE: os.path.abspath(getattr(main, "__file__", None) or ""),  # noqa: PTH100 - as multiprocessing does
        MAIN_NAME_VARIABLE: getattr(getattr(main, "__spec__", None), "name", None) or "",
        TARGET_VARIABLE: target.json if target else "",
        MODULES_VARIABLE: ",".join(modules),
        _THREADS_VARIABLE: "1",
    }
    with starting:
        _make_folder()
        multiprocessing.get_context("forkserver").set_forkserver_preload(["cross.pool.warm"])
        with _environment(variables), _interrupts_blocked():
            forkserver.ensure_running()
        _own_folder()


def _make_folder() -> None:
    """Make multiprocessing create the folder of its socket, outside $TMPDIR if the path would be too long there."""
    usual = tempfile.gettempdir()
    roots = [root for root in (usual, *_SHORT_ROOTS) if _fits(root) and os.access(root, os.W_OK | os.X_OK)]
    if roots and roots[0] != usual:
        remove_abandoned(Path(roots[0]))
        tempfile.tempdir = roots[0]
    try:
        folder = Path(util.get_temp_dir())  # multiprocessing uses the same folder from now on
    finally:
        tempfile.tempdir = usual
    if not _fits(folder.parent):
        most = _SOCKET_PATH_BYTES - _SOCKET_NAME_BYTES
        raise ConfigError(
            f"the path of the temporary folder {folder.parent} is too long: set TMPDIR to one of {most} bytes"
        )


def _fits(root: str | Path) -> bool:
    return len(os.fsencode(root)) + _SOCKET_NAME_BYTES <= _SOCKET_PATH_BYTES


def _own_folder() -> None:
    """Have the folder of the server's socket removed even after a kill -9 of this process."""
    folder = Path(util.get_temp_dir())
    with contextlib.suppress(OSError):
        if not any(folder.glob(".owner*")):
            own(folder)  # until this process ends


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables and remove secrets in the environment of processes started inside the block."""
    hidden = os.environ.keys() - without_secrets(os.environ).keys()
    before = {name: os.environ.get(name) for name in (*variables, *hidden)}
    for name in hidden:
        del os.environ[name]
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in processes started here: the kernel sends the terminal's Ctrl-C to the whole process group.

    Multiprocessing's fork server ignores it too, but only once it has imported all it should: until then an interrupt
    ended it with a traceback, and with it every task.
    """
    resource_tracker.ensure_running()  # starting it would unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
