"""Compilers and linkers as commands: where ziglang is, what Debian calls an architecture, and how a tool is run."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Sequence

from fleet.errors import BuildError, ErrorKind

_LAST_LINES = 12


def zig(*words: str) -> tuple[str, ...] | None:
    """Return a command of the Python package ziglang; None: it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return (sys.executable, "-m", "ziglang", *words)


def debian_triple(arch: str) -> str:
    """Return what Debian names its cross compilers for an architecture by."""
    return "arm-linux-gnueabihf" if arch == "armv7l" else f"{arch}-linux-gnu"


def run_tool(command: Sequence[str], timeout_sec: float, *, complaint: str = "") -> None:
    """Run a compiler or linker.

    Args:
        complaint: what to say when it fails, in front of its last lines, instead of the command.

    Raises:
        BuildError: it cannot be run, fails, or takes too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_sec, check=False
        )
    except OSError as error:
        raise BuildError(f"cannot run {shlex.join(command)}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise BuildError(
            f"{shlex.join(command)} ran longer than {timeout_sec:.0f} s", ErrorKind.BUILD_TIMEOUT
        ) from error
    if done.returncode != 0:
        complaint = complaint or f"{shlex.join(command)} exited with {done.returncode}"
        raise BuildError(f"{complaint}:\n{last_lines(done.stderr)}")


def last_lines(text: str) -> str:
    """Return the end of what a tool said; lines that it repeats, once."""
    return "\n".join(list(dict.fromkeys(text.strip().splitlines()))[-_LAST_LINES:])
