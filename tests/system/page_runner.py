"""Runs the commands of a page of the documentation as written, in the order of the page.

    python page_runner.py README.md

It runs indented lines `fleet ...`, lines `$ ...` of console blocks (their other lines are output), and Python blocks
without an ellipsis. A block with a title is written to a file of that name. Commands that stay (STAYS) run beside the
rest until the end of the page, or until the next `fleet up` or `fleet tracker serve`: one tracker at a time.

Started by test_pages.py in a network namespace of its own, where the usual ports are free. The only thing replaced is
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STAYS = {
    "fleet up": "Ctrl-C",
    "fleet tracker serve": "tracker listening on",
    "fleet agent serve": "agent listening on",
    "fleet status": "trials/min",
}
"""Commands that run until Ctrl-C, and what they print once they serve."""

_BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```|^    (?P<indented>fleet [^\n]*)$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that a reader does."""

    command: str = ""
    file_name: str = ""
    """Written with `text`, instead of a command."""

    text: str = ""
    """Content of the file; without a file, Python to run."""


def steps(page: str) -> list[Step]:
    """Return what a page asks its reader to do, in order."""
    return [step for block in _BLOCK.finditer(page) for step in _steps_of(block)]


def _steps_of(block: re.Match[str]) -> Iterator[Step]:
    if block["indented"]:
        yield Step(command=_command(block["indented"]))
    elif block["title"]:
        yield Step(file_name=block["title"], text=block["body"])
    elif block["language"] == "console":
        for line in block["body"].replace("\\\n", "").splitlines():
            if line.startswith("$ "):
                yield Step(command=_command(line.removeprefix("$ ")))
    elif block["language"] == "python" and "..." not in block["body"]:
        yield Step(text=block["body"])


def _command(line: str) -> str:
    """Return a command without its remark, on this machine."""
    return re.sub(r"\s{2,}#.*", "", line).replace("HOST", "127.0.0.1")


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


def main(page: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("bench.sh").write_text('#!/bin/sh\ntest -n "$FLEET_LEASE"\n')
    Path("bench.sh").chmod(0o755)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    background: list[Background] = []
    try:
        walk_through(steps(page.read_text()), background)
    finally:
        for process in background:
            process.process.kill()
    print("page done", flush=True)


def walk_through(page: list[Step], background: list[Background]) -> None:
    """Do everything; what stays is added to `background` while it runs."""
    for step in page:
        if step.file_name:
            Path(step.file_name).write_text(step.text)
        elif step.command:
            run_command(step.command, background)
        else:
            print(step.text, flush=True)
            subprocess.run([sys.executable, "-c", step.text], check=True, timeout=60)
    interrupt_all(background)


def run_command(command: str, background: list[Background]) -> None:
    """Run a command to its end, or start one that stays."""
    if command.startswith(("fleet up", "fleet tracker serve")):
        interrupt_all(background)
    ready = next((ready for start, ready in STAYS.items() if command.startswith(start)), None)
    print(f"$ {command}", "&" if ready else "", flush=True)
    if ready is None:
        subprocess.run(shlex.split(command), check=True, timeout=280, stdin=subprocess.DEVNULL)
        return
    background.append(Background(command, ready))
    if command.startswith("fleet status"):
        background.pop().interrupt()


def interrupt_all(background: list[Background]) -> None:
    """Ctrl-C in every terminal, the last one first."""
    while background:
        background.pop().interrupt()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
