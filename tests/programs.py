"""Starts modules of this repository as programs, from wherever the tests run, and tells which processes still run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

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


def descendants(pid: int) -> list[psutil.Process]:
    """Return all living processes below one."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return those that still run; one that only waits to be reaped by its parent does not."""
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
