"""Runs the README's commands as written, in the order of the page.

Started by test_readme.py in a network namespace of its own, where the usual ports are free. The only thing replaced is
the placeholder HOST, by this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
STAYS = {
    "fleet up": "Ctrl-C",
    "fleet tracker serve": "tracker listening on",
    "fleet agent serve": "agent listening on",
    "fleet status": "trials/min",
}
"""Commands that run until Ctrl-C, and what they print once they serve."""


def commands() -> list[str]:
    """All `fleet ...` lines of the README's indented blocks, without their remarks."""
    lines = re.findall(r"^    (fleet .*)$", README.read_text(), flags=re.MULTILINE)
    return [re.sub(r"\s{2,}#.*", "", line).replace("HOST", "127.0.0.1") for line in lines]


def snippets() -> list[str]:
    """All Python blocks that stand alone."""
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [block for block in blocks if "..." not in block]


def stays(command: str) -> str | None:
    return next((ready for start, ready in STAYS.items() if command.startswith(start)), None)


class Background:
    """A command that stays, with its output in a file."""

    def __init__(self, command: str, ready: str) -> None:
        self.command = command
        self.log = Path(f"background-{len(list(Path().glob('background-*')))}")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(shlex.split(command), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 30
        while ready.lower() not in self.log.read_text().lower():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"{command}: no {ready!r} in {self.log.read_text()!r}")
            time.sleep(0.1)

    def interrupt(self) -> None:
        """Ctrl-C; it must end by itself."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=30)
        finally:
            self.process.kill()
        if code not in (0, 130, -signal.SIGINT):
            raise SystemExit(f"{self.command}: exit code {code} after Ctrl-C: {self.log.read_text()}")


def run(command: str) -> None:
    print(f"$ {command}", flush=True)
    subprocess.run(shlex.split(command), check=True, timeout=280, stdin=subprocess.DEVNULL)


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("bench.sh").write_text('#!/bin/sh\ntest -n "$FLEET_LEASE"\n')
    Path("bench.sh").chmod(0o755)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    background: list[Background] = []
    try:
        walk_through(background)
    finally:
        for process in background:
            process.process.kill()
    print("README done", flush=True)


def walk_through(background: list[Background]) -> None:
    """Run everything; what stays is added to `background` while it runs."""
    for command in commands():
        if command.startswith(("fleet up", "fleet tracker serve")):
            # The page offers them as alternatives: one tracker at a time.
            while background:
                background.pop().interrupt()
        ready = stays(command)
        if ready is None:
            run(command)
            continue
        print(f"$ {command} &", flush=True)
        background.append(Background(command, ready))
        if command.startswith("fleet status"):
            background.pop().interrupt()
    for snippet in snippets():
        print(snippet, flush=True)
        subprocess.run([sys.executable, "-c", snippet], check=True, timeout=60)
    while background:
        background.pop().interrupt()


if __name__ == "__main__":
    main()
