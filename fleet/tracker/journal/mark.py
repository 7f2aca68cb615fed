"""The mark: the number of a journal's last commit, written beside it at each commit.

SQLite ends its log at the first damage, so only a number outside of the log reveals that later commits are missing. The
mark is not synced: after a power cut it may be ahead of the journal, so it counts only until the machine boots again.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from fleet.base.machine import machine_fingerprint

_FORMAT = struct.Struct("<8sQQ16s")
_SUM = struct.Struct("<I")
_MAGIC = b"fleetJM1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A journal's number of commits and its boot number at its last commit."""

    commits: int
    boot: int
    machine: str
    """`machine_fingerprint` at that moment."""

    @property
    def is_of_this_boot(self) -> bool:
        """True if the machine has not been booted since, so that no commit can be lost to a power cut."""
        return self.machine == machine_fingerprint()


def mark_path(journal: Path) -> Path:
    """Return the path of a journal's mark."""
    return journal.with_name(f"{journal.name}-mark")


def read_mark(journal: Path) -> Mark | None:
    """Return a journal's mark; None if it is absent or damaged."""
    try:
        content = mark_path(journal).read_bytes()
    except OSError:
        return None
    if len(content) != _FORMAT.size + _SUM.size:
        return None
    magic, commits, boot, machine = _FORMAT.unpack_from(content)
    (found,) = _SUM.unpack_from(content, _FORMAT.size)
    if magic != _MAGIC or found != zlib.crc32(content[: _FORMAT.size]):
        return None
    return Mark(commits=commits, boot=boot, machine=machine.decode("ascii", errors="replace"))


class MarkWriter:
    """Writes the mark of one open journal. Closing is idempotent."""

    def __init__(self, journal: Path) -> None:
        self._path = mark_path(journal)
        self._machine = machine_fingerprint().encode()
        self._descriptor: int | None = None

    def open(self) -> None:
        """Create the file if it is absent.

        Raises:
            OSError: it cannot be written.
        """
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, commits: int, boot: int) -> None:
        """Write the mark. If that fails, the older mark stays and fewer lost commits would be detected."""
        if self._descriptor is None:
            return
        content = _FORMAT.pack(_MAGIC, commits, boot, self._machine)
        try:
            os.pwrite(self._descriptor, content + _SUM.pack(zlib.crc32(content)), 0)
        except OSError:
            return

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
