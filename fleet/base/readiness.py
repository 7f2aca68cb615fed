"""Readiness message of a server process: one line of JSON, on its stdout or in a file."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A server's report that it serves."""

    address: str
    """ "host:port"."""

    devices: tuple[str, ...] = ()
    """Names of an agent's devices."""


def write_ready(ready: Ready) -> None:
    """Write the message to stdout."""
    sys.stdout.write(_line(ready))
    sys.stdout.flush()


def write_ready_file(ready: Ready, path: Path) -> None:
    """Write the message to a file, which appears once it is complete."""
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(_line(ready))
    partial.replace(path)


def read_ready(line: bytes) -> Ready | None:
    """Read a line of a server's stdout; None if it is not the message."""
    with contextlib.suppress(ValueError):
        message = json.loads(line)
        if isinstance(message, dict) and "address" in message:
            return Ready(address=message["address"], devices=tuple(message.get("devices", ())))
    return None


def _line(ready: Ready) -> str:
    return f"{json.dumps(asdict(ready))}\n"
