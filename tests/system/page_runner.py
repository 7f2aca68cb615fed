"""Performs the steps of pages, in order, in a shell that keeps changes to its environment.

    python page_runner.py < steps.json

Steps are those of page_steps.py, as a list in JSON. Commands that stay (STAYS) run beside the rest until the end of the
last page, or until the next `fleet up` or `fleet tracker serve`: one tracker at a time.

Started by test_pages.py in a network namespace of its own, where the usual ports are free.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STAYS = {
    "fleet up": "Ctrl-C",
    "fleet tracker serve": "tracker listening on",
    "fleet agent serve": ", serving",
}
"""Commands that run until Ctrl-C, and their output once they serve."""

CHANGES_THE_SHELL = (". ", "export ")


class Background:
    """A command that stays, with its output in a file."""

    def __init__(self, command: str, ready: str) -> None:
        self.command = command
        self.log = Path(f"background-{len(list(Path().glob('background-*')))}")
        with self.log.open("w") as log:
            self.process = subprocess.Popen(shell(f"exec {command}"), stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 60
        while ready.lower() not in self.log.read_text().lower():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"{command}: no {ready!r} in {self.log.read_text()!r}")
            time.sleep(0.1)

    def interrupt(self) -> None:
        """Ctrl-C; it must end by itself."""
        self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(timeout=60)
        finally:
            self.process.kill()
        if code not in (0, 130, -signal.SIGINT):
            raise SystemExit(f"{self.command}: exit code {code} after Ctrl-C: {self.log.read_text()}")


def main(steps: list[dict[str, str]]) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path("bench.sh").write_text('#!/bin/sh\ntest -n "$FLEET_LEASE"\n')
    Path("bench.sh").chmod(0o755)
    Path(".venv").symlink_to(sys.prefix)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    background: list[Background] = []
    try:
        walk_through(steps, background)
    finally:
        for process in background:
            process.process.kill()
    print("pages done", flush=True)


def walk_through(steps: list[dict[str, str]], background: list[Background]) -> None:
    """Perform all steps; commands that stay are added to `background` while they run."""
    for step in steps:
        if step["file_name"]:
            Path(step["file_name"]).write_text(step["text"])
        elif step["command"]:
            run_command(step["command"], background)
        else:
            print(step["text"], flush=True)
            subprocess.run([sys.executable, "-c", step["text"]], check=True, timeout=280)
    interrupt_all(background)


def run_command(command: str, background: list[Background]) -> None:
    """Run a command to its end, start one that stays, or let it change the environment of later commands."""
    if command.startswith(("fleet up", "fleet tracker serve")):
        interrupt_all(background)
    ready = next((ready for start, ready in STAYS.items() if command.startswith(start)), None)
    print(f"$ {command}", "&" if ready else "", flush=True)
    if ready is not None:
        background.append(Background(command, ready))
    elif command.startswith(CHANGES_THE_SHELL):
        done = subprocess.run(shell(f"{command} && env --null"), check=True, stdout=subprocess.PIPE, text=True)
        os.environ.update(line.split("=", 1) for line in done.stdout.split("\0") if line)
    else:
        subprocess.run(shell(command), check=True, timeout=280, stdin=subprocess.DEVNULL)


def shell(command: str) -> list[str]:
    return ["sh", "-c", command]


def interrupt_all(background: list[Background]) -> None:
    """Ctrl-C in every terminal, the last one first."""
    while background:
        background.pop().interrupt()


if __name__ == "__main__":
    main(json.load(sys.stdin))
