"""Starts modules of this repository as programs, from wherever the tests run, and tells which processes still run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Return the environment without settings of the developer's own fleet."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FLEET_")}


def here() -> dict[str, str]:
    """Return that environment so that a new Python finds the tests."""
    kept = environment()
    return {**kept, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, [kept.get("PYTHONPATH")])])}


def run_module(name: str, *arguments: str | Path, timeout_sec: float = 100.0) -> None:
    """Run a module to its end, as `python -m` does."""
    subprocess.run([sys.executable, "-m", name, *arguments], check=True, env=here(), timeout=timeout_sec)


def made_once(factory: pytest.TempPathFactory, module: str) -> Path:
    """Return a folder that a module has filled, `python -m MODULE FOLDER`, once for all processes of a test run.

    Nobody else writes into it.
    """
    base = factory.getbasetemp()
    root = base.parent if base.name.startswith("popen-") else base  # pytest-xdist's processes have one each in there
    folder, complete = root / module, root / f"{module}.complete"
    with (root / f"{module}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            run_module(module, folder)
            complete.touch()
    return folder


def descendants(pid: int) -> list[psutil.Process]:
    """Return all living processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that still run, without zombies."""
    return [process for process in processes if _is_alive(process)]


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        return _is_alive(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
