"""The processes of one worker as the agent sees them: its keeper, the worker, and their descendants.

This module does not depend on the warm process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from device_agents.jail import cgroup
from device_agents.machine import linux

_CREDENTIALS = struct.Struct("iII")
_MOST_REPORT_BYTES = 4096
_POLL_SEC = 0.002
_PATIENCE_SEC = 0.2
"""Time for a keeper to exit after its worker. A keeper that a candidate has stopped (SIGSTOP) never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """End of a worker process."""

    code: int = 0
    signal: int = 0
    is_keeper_lost: bool = False
    """The keeper was killed first, so the status is unknown."""

    is_out_of_memory: bool = False
    """The kernel killed a process of it at the memory limit."""


class Family:
    """The processes of one worker."""

    def __init__(
        self,
        reports: socket.socket,
        sweep: Callable[[], Sequence[int]] = tuple,
        kill: Callable[[int], None] = linux.kill,
        group: Path | None = None,
    ) -> None:
        """Args:
        reports: the keeper's, see device_agents/workers/keeper.py.
        sweep: kills orphans of a killed keeper that this process adopted; returns those left.
        group: the cgroup of all of them.
        """
        loop = asyncio.get_running_loop()
        self.born: asyncio.Future[int] = loop.create_future()
        """The worker's process id; 0 if it could not be started."""

        self.exited: asyncio.Future[Exit] = loop.create_future()
        """Done when the worker and its keeper have ended."""

        self.keeper: linux.Process | None = None
        self.worker: linux.Process | None = None
        self._reports = reports
        self._sweep = sweep
        self._send_kill = kill
        self.group = group
        self.failure = ""
        """Why there is no worker, if its jail could not be made."""

        self._exit: Exit | None = None
        self._burial: asyncio.Task[None] | None = None
        self._loop = loop
        reports.setblocking(False)
        reports.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        loop.add_reader(reports, self._on_readable)

    @property
    def is_kept(self) -> bool:
        """True if the keeper lives, so that no orphan of this worker was reparented to the agent."""
        return self._burial is None and (self.keeper is None or linux.is_running(self.keeper.pid))

    @property
    def is_worker_gone(self) -> bool:
        """True if the worker has ended, even with an unknown status."""
        return _is_gone(self.worker)

    def members(self, at_most: int | None = None) -> list[int]:
        """Return the processes below the keeper, including the worker; stop soon after `at_most`."""
        return linux.descendants_of(self.keeper.pid, at_most=at_most) if self.keeper is not None else []

    def kill_orphans(self) -> None:
        """Kill orphans that the keeper adopted: they would run beside later candidates."""
        if self.keeper is None or self.worker is None:
            return
        for pid in linux.children_of(self.keeper.pid):
            if pid != self.worker.pid:
                self._send_kill(pid)

    async def kill(self, patience_sec: float = _PATIENCE_SEC) -> None:
        """Kill all processes, and return when `exited`. Can be cancelled."""
        ends_at = self._loop.time() + patience_sec
        while not self.exited.done():
            if self.group is not None:
                cgroup.kill(self.group)
            for pid in self.members():
                self._send_kill(pid)
            if self.keeper is not None and (self._loop.time() > ends_at or self.worker is None):
                self._send_kill(self.keeper.pid)
            await asyncio.wait((self.exited,), timeout=_POLL_SEC * 5)

    def abandon(self) -> None:
        """Stop watching; processes that hang in the kernel are left to it."""
        self._let_go()
        if self._burial is not None:
            self._burial.cancel()
        if not self.exited.done():
            self.exited.set_result(self._exit or Exit(is_keeper_lost=True))

    def why_alive(self) -> str:
        """Return the wait state of a process that survived SIGKILL; empty: unknown."""
        for process in (self.worker, self.keeper):
            seen = linux.look_at(process.pid) if process is not None else None
            if seen is not None and seen.state not in "ZX":
                place = linux.waits_in(seen.pid)
                return f"state {seen.state}" + (f", in {place}" if place else "")
        return ""

    def _on_readable(self) -> None:
        while True:
            try:
                content, ancillary, _, _ = self._reports.recvmsg(_MOST_REPORT_BYTES, socket.CMSG_SPACE(64))
            except BlockingIOError:
                return
            except OSError:
                content, ancillary = b"", []
            if not content:
                self._on_end()
                return
            report = json.loads(content)
            self._take(report, _sender(ancillary) or report.get("pid", 0))

    def _take(self, report: dict[str, object], pid: int) -> None:
        match report["event"]:
            case "kept":
                self.keeper = linux.look_at(pid)
            case "born":
                self.worker = linux.look_at(pid)
                if not self.born.done():
                    self.born.set_result(pid)
            case "failed":
                self.failure = str(report["message"])
            case "ended":
                self._exit = Exit(code=int(str(report["code"])), signal=int(str(report["signal"])))

    def _on_end(self) -> None:
        self._let_go()
        if not self.born.done():
            self.born.set_result(0)
        self._burial = self._loop.create_task(self._bury(), name="bury-worker")

    def _let_go(self) -> None:
        if self._reports.fileno() >= 0:
            self._loop.remove_reader(self._reports)
            self._reports.close()

    async def _bury(self) -> None:
        while not _is_gone(self.keeper):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(_POLL_SEC)
        if self._exit is None:
            # The worker's children did not end: they are now children of this process.
            while not _is_gone(self.worker):
                if self.worker is not None:
                    self._send_kill(self.worker.pid)
                await asyncio.sleep(_POLL_SEC)
            while self._sweep():  # noqa: ASYNC110 - nobody tells us
                await asyncio.sleep(_POLL_SEC)
        if self.group is not None:
            self._exit = replace(
                self._exit or Exit(is_keeper_lost=True), is_out_of_memory=cgroup.ran_out_of_memory(self.group)
            )
            cgroup.kill(self.group)
            cgroup.remove(self.group)
        if not self.exited.done():
            self.exited.set_result(self._exit or Exit(is_keeper_lost=True))


def _is_gone(process: linux.Process | None) -> bool:
    """Tell whether a process has ended; reap it if it was a child of this one."""
    if process is None:
        return True
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(process.pid, os.WNOHANG)[0] != 0
    seen = linux.look_at(process.pid)
    return seen is None or seen.started_ticks != process.started_ticks or seen.state in "ZX"


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the sender's process id in this process's namespace; 0 if the system does not report it."""
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0])
    return 0
