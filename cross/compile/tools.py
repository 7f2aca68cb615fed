"""Compilers and linkers as commands: the path of ziglang, Debian's names of architectures, and running a tool."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from fleet.errors import BuildError, ErrorKind

_LAST_LINES = 12


def zig(*words: str) -> tuple[str, ...] | None:
    """Return a command of the Python package ziglang; None: it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return (sys.executable, "-m", "ziglang", *words)


def debian_triple(arch: str) -> str:
    """Return the prefix of Debian's cross compilers for an architecture."""
    return "arm-linux-gnueabihf" if arch == "armv7l" else f"{arch}-linux-gnu"


def run_tool(command: Sequence[str], timeout_sec: float, *, complaint: str = "") -> None:
    """Run a compiler or linker. Kill it and its descendants after the time limit.

    Args:
        complaint: begins the error message, before the last lines of output; "" names the command.

    Raises:
        BuildError: the command cannot be run, fails, or exceeds the time limit.
    """
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise BuildError(f"cannot run {shlex.join(command)}: {error.strerror}") from error
    with process:
        try:
            _, messages = process.communicate(timeout=timeout_sec)
        except subprocess.TimeoutExpired as error:
            _kill_all(process)
            name = Path(command[0]).name
            problem = f"{name} did not end within {timeout_sec:.0f} s and was stopped: {shlex.join(command)}"
            raise BuildError(problem, ErrorKind.BUILD_TIMEOUT) from error
        except BaseException:  # also if cancelled or interrupted; raised again
            _kill_all(process)
            raise
    if process.returncode != 0:
        complaint = complaint or f"{shlex.join(command)} exited with {process.returncode}"
        raise BuildError(f"{complaint}:\n{last_lines(messages)}")


def _kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process and its descendants. A surviving descendant would run forever and keep the pipe open."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def last_lines(text: str) -> str:
    """Return the end of a tool's output, with repeated lines once."""
    return "\n".join(list(dict.fromkeys(text.strip().splitlines()))[-_LAST_LINES:])
