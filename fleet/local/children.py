"""Supervises child processes: starts them, waits until they are ready, restarts and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.base import signals
from fleet.base.readiness import Ready, read_ready
from fleet.errors import ConfigError, FleetError

_LAUNCHER = Path(__file__).with_name("launch.py")
_TAIL_LINES = 8
_LOG_BYTES = 16 * 1024
"""Limit of the log of a process that does not start."""

_STOP_TIMEOUT_SEC = 5.0
_FIRST_PAUSE_SEC = 0.5
_LONGEST_PAUSE_SEC = 15.0


def bound_to_me(command: Sequence[str], on_death: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return a command that runs `command` and sends it `on_death` when this process dies for any reason."""
    return [sys.executable, "-I", "-S", str(_LAUNCHER), str(int(on_death)), str(os.getpid()), *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Command line of a server that writes a `Ready` to its stdout."""

    name: str
    """Its name for people: "tracker"."""

    command: tuple[str, ...]
    log_path: Path
    """File of its stderr."""

    ready_timeout_sec: float = 30.0


class Child:
    """One child process."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._draining: asyncio.Task[None] | None = None
        self._log_start = 0
        """Offset of this run in the log."""

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def start(self, first_line: Awaitable[str] | None = None) -> Ready:
        """Start the process and wait until it serves.

        Args:
            first_line: input for its stdin, known only after its start.

        Raises:
            FleetError: it ended or stayed silent; the message carries its last lines.
        """
        self.spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.spec.log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *bound_to_me(self.spec.command),
                stdin=asyncio.subprocess.DEVNULL if first_line is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # this process handles the terminal's Ctrl-C, and stops children in order
            )
        try:
            async with asyncio.timeout(self.spec.ready_timeout_sec):
                if first_line is not None:
                    await _tell(self._process, await first_line)
                ready = await self._await_ready(self._process)
        except TimeoutError:
            await self.stop()
            raise FleetError(
                f"the {self.spec.name} was not ready within {self.spec.ready_timeout_sec:g} s{self.tail()}"
            ) from None
        except BaseException:  # also if cancelled or interrupted; raised again
            await self.stop()
            raise
        if ready is None:
            code = await self._process.wait()
            error = ConfigError if code == ConfigError.exit_code else FleetError
            raise error(f"the {self.spec.name} did not start (exit code {code}){self.tail()}")
        self._draining = asyncio.create_task(self._drain(self._process), name=f"fleet drain {self.spec.name}")
        return ready

    async def wait(self) -> int:
        """Wait for the process's end and return its exit code."""
        if self._process is None:
            raise FleetError(f"the {self.spec.name} was not started")
        return await self._process.wait()

    async def stop(self) -> None:
        """Terminate the process, then kill it. Idempotent."""
        process = self._process
        if process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.returncode is None:
                signals.send(process, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STOP_TIMEOUT_SEC):
                        await process.wait()
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)

    async def _await_ready(self, process: asyncio.subprocess.Process) -> Ready | None:
        while process.stdout is not None and (line := await process.stdout.readline()):
            if ready := read_ready(line):
                return ready
        return None

    async def _drain(self, process: asyncio.subprocess.Process) -> None:
        while process.stdout is not None and await process.stdout.read(65536):
            pass

    def tail(self) -> str:
        try:
            said = self.spec.log_path.read_bytes()[self._log_start :].decode(errors="replace")
            lines = said.strip().splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        if lines and lines[-1].startswith("error: "):  # its error message; the rest is its log
            lines = lines[-1:]
        folder = self.spec.log_path.parent
        if not lines and folder.exists() and shutil.disk_usage(folder).free < _LOG_BYTES:
            return f"; {folder} has no room left, not even for its log"
        return "".join(f"\n  {self.spec.name}: {line}" for line in lines)


async def _tell(process: asyncio.subprocess.Process, line: str) -> None:
    """Write a line to a child's stdin, and close it. Ignores a child that has ended, which is reported elsewhere."""
    if process.stdin is not None:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(f"{line}\n".encode())
            await process.stdin.drain()
        process.stdin.close()


async def keep_running(child: Child, on_change: Callable[[str], object]) -> None:
    """Restart a started child whenever it dies, with growing pauses, until cancelled."""
    pause_sec = _FIRST_PAUSE_SEC
    loop = asyncio.get_running_loop()
    while True:
        started_sec = loop.time()
        code = await child.wait()
        if loop.time() - started_sec > _LONGEST_PAUSE_SEC:
            pause_sec = _FIRST_PAUSE_SEC
        on_change(f"the {child.spec.name} ended (exit code {code}), starting it again in {pause_sec:g} s")
        await asyncio.sleep(pause_sec)
        pause_sec = min(2 * pause_sec, _LONGEST_PAUSE_SEC)
        try:
            await child.start()
        except (FleetError, OSError) as error:  # no process or log file is available now: try again
            on_change(str(error))
        else:
            on_change(f"the {child.spec.name} is back")
