"""How far a journal came, noted beside it at each commit.

SQLite takes the end of its log for what was never written, wherever the log is damaged first. Only something outside of
it can tell that more had been there. The mark is not synced: after a power cut it may be ahead of the journal as the
journal may be behind, so it counts only until the machine is booted again.
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
    """A journal as it was when it was written to last."""

    commits: int
    boot: int
    machine: str
    """`machine_fingerprint` of that moment."""

    @property
    def is_of_this_boot(self) -> bool:
        """Whether the machine has not been booted since, so that what was committed cannot be gone."""
        return self.machine == machine_fingerprint()


def mark_path(journal: Path) -> Path:
    """Where the mark of a journal lies."""
    return journal.with_name(f"{journal.name}-mark")


def read_mark(journal: Path) -> Mark | None:
    """Return a journal's mark; None when there is none, or a damaged one."""
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
    """Keeps the mark of one open journal. Closing is idempotent."""

    def __init__(self, journal: Path) -> None:
        self._path = mark_path(journal)
        self._machine = machine_fingerprint().encode()
        self._descriptor: int | None = None

    def open(self) -> None:
        """Make the file if it is not there.

        Raises:
            OSError: it cannot be written.
        """
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, commits: int, boot: int) -> None:
        """Note how far the journal is. A mark that cannot be written stays behind, which costs nothing but proof."""
        if self._descriptor is None:
            return
        content = _FORMAT.pack(_MAGIC, commits, boot, self._machine)
        try:
            os.pwrite(self._descriptor, content + _SUM.pack(zlib.crc32(content)), 0)
        except OSError:
            return

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
