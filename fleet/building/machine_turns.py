"""Locks the cores between processes: two optimizers on one machine, or an optimizer and a `fleet tune`.

Three files are locked by flock(2), which the kernel releases at any end of a process. `gate` is held while a process
enters, which keeps the order of arrival; `building` and `measuring` are held during that work. A process enters once
no other holds a lock that excludes its own. Locks are polled, because a thread blocked in the kernel cannot be
cancelled.

Only this account can open the files' folder. In a shared folder, any account could hold the gate and delay all others.
Two accounts on one machine therefore take no turns: measurements beside foreign work are marked as disturbed.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import fcntl
import logging
import os
import platform
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from fleet.base.config import state_dir
from fleet.base.private_files import make_private_dir
from fleet.errors import ConfigError

logger = logging.getLogger(__name__)

_LOOK_SEC = 0.02
_MOST_WAIT_SEC = 300.0
"""Longer than any turn of ours. A process that is stopped, for example in a debugger, must not stop all others."""

_MODE = 0o600


class Side(enum.Enum):
    """Use of the cores: building or measuring. Processes on one side share them, except for exclusive measurements."""

    BUILDING = "building"
    MEASURING = "measuring"
    MEASURING_ALONE = "measuring alone"


class MachineTurns:
    """One process's handle of the machine-wide locks."""

    def __init__(self, folder: Path, *, most_wait_sec: float = _MOST_WAIT_SEC) -> None:
        """Use `of_this_machine`, or a folder of this account."""
        self._folder = folder
        self._most_wait_sec = most_wait_sec

    @classmethod
    def of_this_machine(cls) -> Self | None:
        """Return the turns of this account's processes on this machine, or None if its state folder is unusable."""
        folder = state_dir() / "turns" / platform.node()  # machines may share home folders
        try:
            make_private_dir(folder.parent)
            os.close(_opened(folder / "gate"))
        except (OSError, ConfigError) as error:
            logger.warning("no turns with other processes", extra={"folder": str(folder), "error": str(error)})
            return None
        return cls(folder)

    @asynccontextmanager
    async def turn(self, side: Side) -> AsyncIterator[None]:
        """Hold the cores for one side. The wait is bounded: after some minutes it continues anyway, and logs that."""
        with contextlib.ExitStack() as kept:
            try:
                await self._enter(side, kept, time.monotonic() + self._most_wait_sec)
            except TimeoutError:
                logger.warning("another process has had the cores for long", extra={"side": side.value})
            yield

    async def _enter(self, side: Side, kept: contextlib.ExitStack, until: float) -> None:
        """Lock the file that marks this process's turn until `kept` is closed."""
        with contextlib.ExitStack() as coming_in:
            await self._lock("gate", fcntl.LOCK_EX, coming_in, until)
            if side is Side.BUILDING:
                await self._lock("measuring", fcntl.LOCK_EX, coming_in, until)
                await self._lock("building", fcntl.LOCK_SH, kept, until)
                return
            await self._lock("building", fcntl.LOCK_EX, coming_in, until)
            is_alone = side is Side.MEASURING_ALONE
            await self._lock("measuring", fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH, kept, until)

    async def _lock(self, name: str, how: int, stack: contextlib.ExitStack, until: float) -> None:
        descriptor = _opened(self._folder / name)
        stack.callback(os.close, descriptor)
        while True:
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError from None
                await asyncio.sleep(_LOOK_SEC)
            else:
                return


def _opened(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # at first use, or after a cleanup
    return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
