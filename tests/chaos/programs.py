"""Processes of a fleet under faults: started, killed, stopped, continued and inspected."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psutil

from tests.chaos.history import Log, What
from tests.programs import REPOSITORY

_START_SEC = 60.0
_STOP_SEC = 40.0


class Program:
    """One process of the fleet, including its restarts."""

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        *,
        folder: Path,
        log: Log,
        environment: dict[str, str],
        ready: str = "",
        on_end: Callable[[int], Awaitable[None]] | None = None,
        stop_codes: Sequence[int] = (0,),
    ) -> None:
        """Args:
        ready: the text that it prints when it is ready, followed by " listening on HOST:PORT"; empty: nothing.
        on_end: called with the exit code if the program ends by itself; None: it should not.
        stop_codes: allowed exit codes after SIGTERM.
        """
        self.name = name
        self.port = 0
        self.busy = asyncio.Lock()
        """Held while a fault is done to it."""
        self._command = command
        self._log = log
        self._output = folder / f"{name}.log"
        self._printed = folder / f"{name}.out"
        self._clock = folder / f"{name}.clock"
        self._clock.write_bytes(struct.pack("d", 0.0))
        self._environment = {**environment, "CHAOS_CLOCK": str(self._clock)}
        self._ready = ready
        self._on_end = on_end
        self._stop_codes = stop_codes
        self._process: asyncio.subprocess.Process | None = None
        self.is_wanted = False
        """True if it should run now."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> int | None:
        """Start it, and wait until it is ready; return its exit code if it ends instead."""
        with self._output.open("ab") as output, self._printed.open("wb") as printed:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command(),
                stdout=asyncio.subprocess.PIPE if self._ready else printed,
                stderr=output,
                env=self._environment,
                cwd=REPOSITORY,
                start_new_session=True,
            )
        if self._ready and not await self._is_ready(self._process):
            return await self._process.wait()
        self.is_wanted = True
        self._watching = asyncio.create_task(self._watch(self._process), name=f"watch {self.name}")
        return None

    async def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.is_wanted = False
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Terminate it; log an end that is late or has an unexpected exit code."""
        self.is_wanted = False
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SEC):
                code = await self._process.wait()
        except TimeoutError:
            self._log.write(What.ENDED, who=self.name, text=f"not at all, {_STOP_SEC:g} s after SIGTERM")
            await self.kill()
            return
        if code not in self._stop_codes:
            self._log.write(What.ENDED, who=self.name, text=f"after SIGTERM with exit code {code}; {self.last_words()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def set_clock(self, offset_sec: float) -> None:
        """Set its fake wall clock, by a write of eight bytes into the file that it maps."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("d", offset_sec))

    def children(self) -> list[psutil.Process]:
        """Return its descendants."""
        try:
            found = psutil.Process(self.pid).children(recursive=True) if self.is_running else []
        except psutil.NoSuchProcess:
            return []
        return found

    def count(self) -> dict[str, float]:
        """Return its present use of resources."""
        try:
            process = psutil.Process(self.pid)
            return {
                "files": float(process.num_fds()),
                "bytes": float(process.memory_info().rss),
                "threads": float(process.num_threads()),
                "processes": float(len(process.children(recursive=True))),
            }
        except psutil.NoSuchProcess:
            return {}

    def output(self) -> str:
        """Return its output so far."""
        return self._printed.read_text(errors="replace")

    def last_words(self) -> str:
        """Return the end of its log."""
        lines = self._output.read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])[-600:]

    async def _is_ready(self, process: asyncio.subprocess.Process) -> bool:
        if process.stdout is None:
            return False
        async with asyncio.timeout(_START_SEC):
            while line := (await process.stdout.readline()).decode():
                if match := re.search(rf"{self._ready} listening on \S+:(\d+)", line):
                    self.port = int(match[1])
                    return True
        return False

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if not self.is_wanted or process is not self._process:
            return
        if self._on_end is not None:
            await self._on_end(code)
        else:
            self._log.write(What.ENDED, who=self.name, text=f"with exit code {code}; {self.last_words()}")


def own_environment(folder: Path, shim: Path) -> dict[str, str]:
    """Return the environment of all processes: without the developer's own fleet, all files below `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLEET_")}
    own = {
        "FLEET_CREDENTIALS_DIR": str(folder / "credentials"),
        "FLEET_DATA_DIR": str(folder / "data"),
        "FLEET_CACHE_DIR": str(folder / "cache"),
        "TMPDIR": str(folder / "tmp"),
        "CHAOS_DEVICE_LOGS": str(folder / "logs"),
        "LD_PRELOAD": str(shim),
        "PYTHONPATH": str(REPOSITORY),
        "TVM_NUM_THREADS": "1",
    }
    return {**kept, **own}
