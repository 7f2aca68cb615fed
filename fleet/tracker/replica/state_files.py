"""Files beside the journal that a standby needs, too: the list of members, and the shares."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fleet.base.private_files import write_private
from fleet.base.scratch import scratch_dir
from fleet.tracker.backup import MEMBERS, POLICY, copy_checked
from fleet.tracker.members import Members


class StateFiles:
    """Notices changes of these files. Changes from before it was made do not count."""

    def __init__(self, directory: Path, members: Members, policy: Path) -> None:
        self._directory = directory
        self._members = members
        self._policy = policy
        self._version = members.version
        self._policy_content = _content(policy)

    async def changed(self) -> dict[str, bytes]:
        """Return the contents of files that have changed, by name."""
        found = {}
        if self._members.version != self._version:
            self._version = self._members.version
            found[MEMBERS] = await asyncio.to_thread(_copied, self._directory / MEMBERS)
        content = _content(self._policy)
        if content != self._policy_content:
            found[POLICY] = self._policy_content = content
        return found


def keep_file(directory: Path, name: str, content: bytes) -> bool:
    """Write a file of the primary's; return False for a name that no tracker sends."""
    if name not in (MEMBERS, POLICY):
        return False
    write_private(directory / name, content)
    return True


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _copied(path: Path) -> bytes:
    with scratch_dir("members") as scratch:
        copy_checked(path, scratch / path.name)
        return (scratch / path.name).read_bytes()
