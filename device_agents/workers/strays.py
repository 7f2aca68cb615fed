"""Orphans that the agent adopted: left by a worker whose keeper was killed.

A stray is recognised by facts that its kernel could not change: it is in another session than the agent, which no
process can enter
again, and it came while a keeper was dead. A process in another session that came while all keepers lived is the
agent's own, as the server that adb leaves running. Nobody waits for that one: once it has ended, it is buried here.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable

from device_agents.machine import linux

logger = logging.getLogger(__name__)


class Strays:
    """Distinguishes the agent's own children from adopted ones."""

    def __init__(self) -> None:
        self._own: set[tuple[int, int]] = set()
        self._ended: set[tuple[int, int]] = set()
        """Processes that had ended at the last reaping."""

    def note_own(self) -> None:
        """Register all current children as the agent's own. Call it only while every keeper lives."""
        self._own = {(process.pid, process.started_ticks) for process in _foreign_children()}

    def kill(self, keepers: Iterable[linux.Process] = ()) -> list[int]:
        """Kill all other children with their descendants; return those that are still dying.

        Args:
            keepers: live keepers, some of them newer than `note_own`.
        """
        spared = self._own | {(keeper.pid, keeper.started_ticks) for keeper in keepers}
        strays = [process for process in _foreign_children() if (process.pid, process.started_ticks) not in spared]
        for process in strays:
            for pid in (*linux.descendants_of(process.pid), process.pid):
                linux.kill(pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
        if strays:
            logger.warning(
                "killed processes that a worker left behind", extra={"pids": [process.pid for process in strays]}
            )
        return [process.pid for process in strays if linux.is_running(process.pid)]

    def bury(self) -> None:
        """Reap adopted processes that had ended at the previous call: by now their starters have waited for them."""
        ended = {(process.pid, process.started_ticks) for process in _foreign_children() if process.state == "Z"}
        for pid, _ in ended & self._ended:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._ended = ended


def _foreign_children() -> list[linux.Process]:
    ours = os.getsid(0)
    children = map(linux.look_at, linux.children_of(os.getpid()))
    return [child for child in children if child is not None and child.session != ours]
