"""The audit log: actions of members in the fleet, and refused attempts. One JSON object per line, the newest at the
end.

<state directory>/audit.jsonl, and audit.jsonl.1 ... audit.jsonl.4 before it
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from io import FileIO
from pathlib import Path

from fleet.identity.audit_entry import AuditEntry
from fleet.identity.roles import Role

logger = logging.getLogger(__name__)

_MAX_FILE_BYTES = 8 * 1024 * 1024
OLDER_FILES = 4
_MAX_SUBJECT_CHARS = 2_000
_TORN_LINES = 16
"""Number of the read lines that a crash may have torn."""
_REFUSALS_PER_SEC = 20.0
"""Rate limit for strangers: refused callers must not fill the disk, nor push members' actions out of the log."""
_BURST = 200.0


class AuditLog:
    """Appends to the file. A failure does not stop the fleet, and is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        """Without a buffer: a write refused by a full disk is not repeated at the close, which would fail as well."""

        self._is_torn = False
        """True if the last line lacks its end."""

        self._size_bytes = 0
        self._allowance = _BURST
        self._refilled_at_sec = 0.0
        self._dropped = 0

    def write(self, entry: AuditEntry) -> None:
        """Append an entry. Refused calls are rate-limited; the next entry counts the dropped ones."""
        if entry.outcome == "ok":
            self._write(entry)
        else:
            self.write_limited(entry.at_sec, lambda: entry)

    def write_limited(self, at_sec: float, make: Callable[[], AuditEntry]) -> None:
        """Append one of very many entries, unless the rate limit drops it; then it is not even made."""
        if self._may_write(at_sec):
            self._write(make())
        else:
            self._dropped += 1

    def _write(self, entry: AuditEntry) -> None:
        values = {**asdict(entry), "subject": entry.subject[:_MAX_SUBJECT_CHARS]}
        if self._dropped:
            values["refusals_not_shown"], self._dropped = self._dropped, 0
        try:
            self._append(json.dumps(values).encode() + b"\n")
        except OSError as error:
            self.close()
            logger.error("audit log cannot be written", extra={"path": str(self._path), "error": str(error)})

    def newest(self, limit: int) -> list[bytes]:
        """Return the newest lines and some more, oldest first, for `read_entries`. Reads only the end of the file."""
        most, found = limit + _TORN_LINES, list[bytes]()
        for path in [self._path, *map(self._older, range(1, OLDER_FILES + 1))]:
            if len(found) < most:
                found = [*_last_lines(path, most - len(found)), *found]
        return found

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file:
            self._file.close()
        self._file = None

    def _append(self, line: bytes) -> None:
        if self._file is None:
            self._file = self._path.open("ab", buffering=0)
            self._path.chmod(0o600)
            self._size_bytes = self._path.stat().st_size
            self._is_torn = _is_torn(self._path)
        if self._size_bytes + len(line) > _MAX_FILE_BYTES:
            self._rotate()
            self._append(line)
            return
        content = b"\n" + line if self._is_torn else line
        written = self._file.write(content)
        self._size_bytes += written
        if written < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _rotate(self) -> None:
        self.close()
        for number in range(OLDER_FILES, 0, -1):
            newer = self._older(number - 1) if number > 1 else self._path
            if newer.exists():
                newer.rename(self._older(number))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _may_write(self, now: float) -> bool:
        grown = max(now - self._refilled_at_sec, 0.0) * _REFUSALS_PER_SEC
        self._allowance, self._refilled_at_sec = min(self._allowance + grown, _BURST), now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


def tracker_entry(at_sec: float, action: str, subject: Mapping[str, object]) -> AuditEntry:
    """Return an entry of an action that the tracker takes by itself."""
    return AuditEntry(
        at_sec=at_sec,
        name="tracker",
        role=Role.TRACKER,
        key_id="",
        peer="",
        action=action,
        subject=json.dumps(subject),
        outcome="ok",
    )


def read_entries(lines: Iterable[bytes], limit: int) -> list[AuditEntry]:
    """Return the last entries of the log, without those torn by a crash. Takes 5 us per entry."""
    names, found = AuditEntry.__dataclass_fields__, list[AuditEntry]()
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            values = json.loads(line)
            found.append(AuditEntry(**{name: values[name] for name in names}))
    return found[-limit:]


def _last_lines(path: Path, most: int) -> list[bytes]:
    try:
        content = path.read_bytes()
    except OSError:
        return []
    return content.rstrip(b"\n").rsplit(b"\n", most)[-most:]


def _is_torn(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"
