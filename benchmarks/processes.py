"""The processes of a benchmark: started, awaited until ready, spoken to by lines, stopped with all their children."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.common import REPOSITORY, JsonObject
from fleet.local.children import bound_to_me

_STOP_TIMEOUT_SEC = 10.0
_TAIL_LINES = 15
_DROPPED = ("FLEET_", "TVM_", "OMP_")


class ProcessFailed(Exception):
    """A process of the benchmark ended or stayed silent; the message carries its last lines."""


def python(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module with this interpreter."""
    return [sys.executable, "-m", module, *map(str, arguments)]


class Process:
    """A child in a process group of its own, run in the repository's root; its stderr goes to `log_path`."""

    def __init__(self, command: Sequence[str], log_path: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._environment = {**_clean_environment(), **(environment or {})}
        self._log_path = log_path
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Process:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                bound_to_me(self._command),
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._collect, name=f"stdout of {self._process.pid}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_SEC)
        # Stock TVM's programs leave children behind; the group has no other processes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it may have ended before it read the last request
                self._process.stdin.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if it has not ended yet."""
        return self._process.poll() is None

    def kill(self, *, with_children: bool) -> None:
        """kill -9, and reap; children that share its group live on unless they are to go, too."""
        if with_children:
            os.killpg(self._process.pid, signal.SIGKILL)
        else:
            self._process.kill()
        self._process.wait()

    def wait_for(self, pattern: str, timeout_sec: float = 60.0) -> re.Match[str]:
        """Return the match in the first line of its stdout that has one.

        Raises:
            ProcessFailed: no such line in time.
        """
        for line in self._until(time.monotonic() + timeout_sec):
            match = re.search(pattern, line)
            if match:
                return match
        raise ProcessFailed(self._failure(f"did not print {pattern!r} within {timeout_sec:g} s"))

    def ask(self, request: object, timeout_sec: float = 600.0) -> JsonObject:
        """Write one JSON line and return the JSON line that answers it.

        Raises:
            ProcessFailed: no answer in time.
        """
        stdin = self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # the process is gone: waiting for its answer raises the reason
            if stdin is not None:
                stdin.write(json.dumps(request) + "\n")
                stdin.flush()
        answer: JsonObject = json.loads(self.wait_for(r"^\{.*\}$", timeout_sec)[0])
        return answer

    def finish(self, timeout_sec: float) -> list[str]:
        """Wait for its end and return all lines of its stdout.

        Raises:
            ProcessFailed: it failed, or took longer.
        """
        deadline = time.monotonic() + timeout_sec
        lines = list(self._until(deadline))
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        if self._process.poll() is None:
            raise ProcessFailed(self._failure(f"did not end within {timeout_sec:g} s"))
        if self._process.returncode != 0:
            raise ProcessFailed(self._failure("failed"))
        return lines

    def _until(self, deadline: float) -> Iterator[str]:
        """Yield lines until stdout is closed or the deadline [time.monotonic()] has passed."""
        while (pause_sec := deadline - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=pause_sec)
                if line is None:
                    self._lines.put(None)  # for the next reader
                    return
                yield line

    def _collect(self) -> None:
        if self._process.stdout is not None:
            with self._process.stdout as stdout:
                for line in stdout:
                    self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _failure(self, what: str) -> str:
        tail = self._log_path.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.poll()
        ended = "" if code is None else f" (exit code {code})"
        return "\n  ".join([f"{' '.join(self._command)} {what}{ended}", *tail])


def _clean_environment() -> dict[str, str]:
    """Return our environment without the user's own fleet and thread counts in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
