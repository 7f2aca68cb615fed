"""The process of a stock client: found by its socket, and watched for its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_MOST_RECENT = 16


class ClientProcess:
    """A process of this user, watched until closed."""

    def __init__(self, descriptor: int) -> None:
        """Args:
        descriptor: of `os.pidfd_open`; closed with this object.
        """
        self._descriptor = descriptor

    def watch(self, on_end: Callable[[], object]) -> None:
        """Call `on_end` once the process has ended."""
        asyncio.get_running_loop().add_reader(self._descriptor, on_end)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1


class ClientFinder:
    """Finds the process of a socket. Looks at recent clients first."""

    def __init__(self) -> None:
        self._recent: dict[int, None] = {}

    async def find(self, inode: int) -> ClientProcess | None:
        """Return the process that holds a socket; None if this user cannot see it. A new one takes milliseconds."""
        pid = await asyncio.to_thread(self._find_pid, inode)
        if pid is None:
            return None
        self._recent[pid] = None
        if len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        return _open(pid, inode)

    def _find_pid(self, inode: int) -> int | None:
        return next((pid for pid in self._pids() if _holds(pid, inode)), None)

    def _pids(self) -> Iterator[int]:
        yield from reversed(list(self._recent))
        yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _open(pid: int, inode: int) -> ClientProcess | None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if _holds(pid, inode):  # still: the number was not given to another process meanwhile
        return ClientProcess(descriptor)
    os.close(descriptor)
    return None


def _holds(pid: int, inode: int) -> bool:
    wanted = Path(f"socket:[{inode}]")
    with contextlib.suppress(OSError):  # ended, or another user's
        return any(_leads_to(file) == wanted for file in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _leads_to(file: Path) -> Path | None:
    with contextlib.suppress(OSError):  # closed meanwhile
        return file.readlink()
    return None
