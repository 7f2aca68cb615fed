"""Tasks for confined workers that try the attacks of a hostile model."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


class Planted:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str) -> None:
    Path(path).write_text("theirs")


def write_temporary() -> str:
    path = Path(os.environ["TMPDIR"], "own")
    path.write_text("mine")
    return path.read_text() + Path.home().name


def connect(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()


def connect_unix(path: str) -> None:
    socket.socket(socket.AF_UNIX).connect(path)


def kill(pid: int) -> None:
    os.kill(pid, 0)


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def run_and_read(path: str) -> str:
    return subprocess.run(["/bin/cat", path], capture_output=True, text=True, check=True).stdout


def take_memory(size_bytes: int) -> int:
    return len(bytearray(size_bytes))


def answer_with_code(marker: str) -> object:
    return Planted(marker)


def pid() -> int:
    return os.getpid()
